"""Configs are typed at the edge: what a file says is checked, completed, or refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, get_type_hints

import pytest

from ostro.core import config as configs
from ostro.core.config import ModelConfig, TextConfig, WindowConfig
from ostro.core.errors import ConfigError
from ostro.core.log import warn_once
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import resolve

GOOD: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


@dataclass(frozen=True, kw_only=True)
class Inner(ModelConfig):
    depth: int = 3


@dataclass(frozen=True, kw_only=True)
class Config(WindowConfig):
    scale: float = 1.0
    scales: tuple[float, ...] = ()
    cap: float | None = None
    gate: bool = False
    inner: Inner = field(default_factory=Inner)
    table: dict[str, Any] = field(default_factory=dict)
    unimplemented: ClassVar[Mapping[str, Any]] = {"logit_scale": 1.0}


@dataclass(frozen=True, kw_only=True)
class FixedHead(TextConfig):
    head_dim: int = 256


def read(**changes: Any) -> Config:
    """The config of a good file with some keys changed."""
    return Config.from_hf({**GOOD, **changes})


def test_missing_fields_get_their_defaults() -> None:
    config = read()
    assert (config.num_key_value_heads, config.head_dim) == (4, 16)
    assert (config.max_position_embeddings, config.rms_norm_eps) == (2048, 1e-6)
    assert config.rope_parameters == {
        "rope_type": "default", "rope_theta": 10000.0, "max_position_embeddings": 2048,
    }  # fmt: skip
    assert FixedHead.from_hf(GOOD).head_dim == 256, "a family's own default is not overruled"
    assert FixedHead.from_hf({**GOOD, "hidden_size": 65}).hidden_size == 65


def test_given_fields_override_defaults() -> None:
    config = read(num_key_value_heads=2, head_dim=32, scale=2, cap=50.0, scales=[1, 2.5])
    assert (config.num_key_value_heads, config.head_dim) == (2, 32)
    assert config.scale == 2.0 and isinstance(config.scale, float)
    assert config.scales == (1.0, 2.5) and config.cap == 50.0
    assert read(inner={"depth": 5, "unknown": 1}).inner == Inner(depth=5)
    assert read(table={"a": [1]}).table == {"a": [1]}


def test_null_fields_get_their_defaults() -> None:
    assert read(num_key_value_heads=None, scale=None, cap=None) == read()


@pytest.mark.parametrize("name", GOOD)
def test_missing_required_fields_are_rejected(name: str) -> None:
    raw = {key: value for key, value in GOOD.items() if key != name}
    for missing in (raw, {**raw, name: None}):
        with pytest.raises(ConfigError, match=f"no '{name}', which .*test_config.* needs"):
            Config.from_hf(missing)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": "64"}, "hidden_size='64' is not an integer"),
        ({"hidden_size": 64.0}, "hidden_size=64.0 is not an integer"),
        ({"hidden_size": True}, "hidden_size=True is not an integer"),
        ({"hidden_size": [64]}, r"hidden_size=\[64\] is not an integer"),
        ({"scale": "1"}, "scale='1' is not a number"),
        ({"scale": True}, "scale=True is not a number"),
        ({"cap": "none"}, "cap='none' is not a number"),
        ({"scales": 1.0}, "scales=1.0 is not a list"),
        ({"scales": [1.0, "x"]}, "scales='x' is not a number"),
        ({"gate": 1}, "gate=1 is not true or false"),
        ({"hidden_act": 3}, "hidden_act=3 is not a string"),
        ({"inner": 3}, "inner is not an object"),
        ({"inner": {"depth": "x"}}, "depth='x' is not an integer"),
        ({"table": []}, r"table=\[\] is not an object"),
        ({"hidden_act": "x" * 1000}, None),
        ({"vocab_size": "x" * 1000}, r"vocab_size='x{1,79} is not"),
    ],
)
def test_types_are_checked(changes: dict[str, Any], said: str | None) -> None:
    if said is None:
        assert read(**changes)
        return
    with pytest.raises(ConfigError, match=said):
        read(**changes)


SIZES = (
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
    "num_key_value_heads head_dim max_position_embeddings"
).split()


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", [0, -8, 2**31, 10**12, 10**400])
def test_sizes_are_within_reason(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=rf"\b{name}={value}"):
        read(**{name: value})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_attention_heads": 5}, "hidden_size=64 is not a multiple of num_attention_heads=5"),
        ({"num_key_value_heads": 3}, "heads=4 is not a multiple of num_key_value_heads=3"),
        ({"rms_norm_eps": math.nan}, "rms_norm_eps=nan"),
        ({"rms_norm_eps": math.inf}, "rms_norm_eps=inf"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps=inf"),
        ({"rms_norm_eps": -1e-9}, "rms_norm_eps=-1e-09"),
        ({"rms_norm_eps": 1}, "rms_norm_eps=1.0"),
        ({"hidden_size": 2**26, "num_hidden_layers": 2**14}, "over 10.13 weights"),
        ({"sliding_window": 0}, "sliding_window=0 is not positive"),
        ({"layer_types": ["full_attention"]}, "layer_types lists 1 layers, num_hidden_layers=2"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types lists 3 layers"),
        ({"layer_types": ["full_attention", "linear"]}, "layer_types contains 'linear'"),
        ({"layer_types": ["full_attention", None]}, "layer_types=None is not a string"),
        ({"rope_parameters": [1]}, r"rope_parameters=\[1\] is not an object"),
        ({"rope_scaling": ["yarn"]}, r"rope_scaling=\['yarn'\] is not an object"),
        ({"rope_scaling": {"type": ["yarn"]}}, r"rope_type=\['yarn'\] is not a string"),
        ({"rope_theta": 0}, "rope_theta=0"),
        ({"rope_theta": math.nan}, "rope_theta=nan"),
        ({"rope_theta": None}, "rope_theta=None"),
        ({"rope_parameters": {"rope_theta": "x"}}, "rope_theta='x'"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(**changes)
    assert read()


def test_an_explicit_head_dim_needs_no_divisible_hidden_size() -> None:
    assert read(num_attention_heads=5, num_key_value_heads=5, head_dim=8).head_dim == 8


def test_windows_are_of_the_layers_that_slide() -> None:
    types = ["full_attention", "sliding_attention"]
    config = read(sliding_window=7, layer_types=types)
    assert [config.window(layer) for layer in range(2)] == [0, 7]
    assert [read(sliding_window=7).window(layer) for layer in range(2)] == [7, 7]
    assert [read(layer_types=types).window(layer) for layer in range(2)] == [0, 0]


@pytest.mark.parametrize(
    ("raw", "rule"),
    [
        ({"rope_theta": 5e5}, {"rope_theta": 5e5, "rope_type": "default"}),
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0},
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 7.0, "factor": 4}},
            {"rope_theta": 7.0, "rope_type": "yarn", "factor": 4},
        ),
        (
            {"partial_rotary_factor": 0.5, "rope_scaling": None},
            {"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": 0.5},
        ),
        (
            {
                "rope_parameters": {"rope_type": "llama3", "rope_theta": 7.0, "mrope_section": [8]},
                "rope_scaling": {"type": "yarn", "factor": 4.0},
            },
            {"rope_type": "yarn", "rope_theta": 7.0, "mrope_section": [8], "factor": 4.0},
        ),
        (
            {
                "rope_parameters": {"rope_type": "default", "rope_theta": 7.0},
                "rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": 9.0},
            },
            {"rope_type": "linear", "rope_theta": 9.0, "factor": 2.0},
        ),
        (
            {"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}},
            {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0},
        ),
    ],
)
def test_a_rope_rule_in_its_old_and_new_forms(raw: dict[str, Any], rule: dict[str, Any]) -> None:
    config = read(max_position_embeddings=4096, **raw)
    assert config.rope_parameters == {**rule, "max_position_embeddings": 4096}


def test_a_rope_rule_for_each_type_of_layer() -> None:
    given = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default"},
    }
    full, sliding = read(rope_theta=5.0, rope_parameters=given).rope_parameters.values()
    assert (full["rope_theta"], full["rope_type"], full["factor"]) == (1e6, "linear", 8.0)
    assert (sliding["rope_theta"], sliding["rope_type"]) == (5.0, "default")


def test_a_scaling_beside_rules_for_types_of_layers_is_of_full_attention() -> None:
    given = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 3.0},
    }
    scaling = {"type": "yarn", "factor": 4.0}
    rules = read(rope_parameters=given, rope_scaling=scaling).rope_parameters
    full, sliding = rules["full_attention"], rules["sliding_attention"]
    assert (full["rope_theta"], full["rope_type"], full["factor"]) == (1e6, "yarn", 4.0)
    assert (sliding["rope_theta"], sliding["rope_type"]) == (3.0, "default")
    own = read(rope_parameters={"rope_type": "default"}, rope_scaling=given).rope_parameters
    assert own["full_attention"]["factor"] == 8.0


@pytest.mark.parametrize(
    ("rule", "limit"),
    [
        ({"rope_type": "default"}, 4096),
        ({"rope_type": "linear", "factor": 4.0}, 16384),
        ({"type": "yarn", "factor": 4, "original_max_position_embeddings": 2048}, 8192),
        ({"rope_type": "yarn", "factor": 2.5}, 10240),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}, 4096),
        ({"rope_type": "yarn", "factor": 1e12}, 2**31),
        ({"rope_type": "yarn", "factor": "4"}, 4096),
        ({"rope_type": "llama3", "factor": 8.0}, 4096),
        ({"rope_type": "dynamic", "factor": 8.0}, 4096),
        ({"full_attention": {"rope_type": "linear", "factor": 8.0}}, 4096),
    ],
)
def test_scaling_lengthens_the_context(rule: dict[str, Any], limit: int) -> None:
    config = read(max_position_embeddings=4096, rope_scaling=rule)
    assert config.context_limit == limit


def test_an_unimplemented_key_is_refused() -> None:
    said = r"sets logit_scale=0.5, and .* only 1.0; use --allow-config logit_scale"
    with pytest.raises(ConfigError, match=said):
        read(logit_scale=0.5)
    with pytest.raises(ConfigError, match="is_causal=False"):
        WindowConfig.from_hf({**GOOD, "is_causal": False})
    assert Config.from_hf({**GOOD, "logit_scale": 0.5}, allow=["logit_scale"]) == read()
    with pytest.raises(ConfigError, match="logit_scale"):
        Config.from_hf({**GOOD, "logit_scale": 0.5}, allow=["clip"])


@pytest.mark.parametrize("value", [1.0, 1, None])
def test_the_implemented_value_of_a_key_is_accepted(value: Any) -> None:
    assert read(logit_scale=value) == read()


def test_a_field_is_not_unimplemented() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Implemented(Config):
        logit_scale: float = 1.0

    assert Implemented.from_hf({**GOOD, "logit_scale": 0.5}).logit_scale == 0.5


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Any:
    """Warnings, if transformers' class of model type "x" has two keys more than ours."""
    defaults = {"x": {"logit_cap": 1.0, "clip": None, "hidden_size": 4096}}
    monkeypatch.setattr(configs, "reference_defaults", lambda kind: defaults.get(kind, {}))
    warn_once.cache_clear()
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_key_that_only_transformers_reads_is_warned_of_once(warnings: Any) -> None:
    assert read(model_type="x", logit_cap=0.5) == read(model_type="x", logit_cap=0.5)
    read(model_type="x", clip=8.0)
    Config.from_hf({**GOOD, "model_type": "x", "clip": 9.0}, allow=["clip"])
    first, second = warnings()
    assert "sets logit_cap=0.5 (default of x: 1.0)" in first
    assert "--allow-config logit_cap" in first
    assert "sets clip=8.0 (default of x: None)" in second


@pytest.mark.parametrize(
    "raw",
    [
        {"model_type": "x", "logit_cap": 1.0},
        {"model_type": "x", "logit_cap": None},
        {"model_type": "x", "made_up": 5},
        {"model_type": "y", "logit_cap": 0.5},
        {"model_type": ["x"], "logit_cap": 0.5},
        {"logit_cap": 0.5},
        {"model_type": "x", "torch_dtype": "float16", "use_cache": False, "bos_token_id": 5},
    ],
)
def test_other_keys_are_ignored(warnings: Any, raw: dict[str, Any]) -> None:
    assert read(**raw) == read()
    assert not warnings()


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("hunyuan_v1_dense", "eod_token_id", 127967),
        ("bert", "hidden_dropout_prob", 0.0),
        ("bert", "attention_probs_dropout_prob", 0.2),
        ("roberta", "classifier_dropout", 0.1),
        ("phi3", "embd_pdrop", 0.1),
        ("phi3", "resid_pdrop", 0.1),
        ("starcoder2", "residual_dropout", 0.1),
        ("mllama_text_model", "dropout", 0.1),
        ("clip_vision_model", "initializer_factor", 0.5),
        ("deepseek_v3", "num_nextn_predict_layers", 0),
        ("deepseek_v3", "output_router_logits", True),
        ("glm4_moe", "router_aux_loss_coef", 0.5),
    ],
)
def test_keys_of_training_are_ignored(
    caplog: pytest.LogCaptureFixture, kind: str, key: str, value: Any
) -> None:
    warn_once.cache_clear()
    configs.warn_of_unread({key: value}, kind)
    assert not caplog.records


def test_defaults_are_those_of_the_first_base_that_states_them() -> None:
    """A dataclass takes all fields of its first base, those that this base inherits included."""
    plugins = PluginManager()
    plugins.load()
    wrong = []
    for name, record in plugins.collect("architectures").items():
        config = resolve(record.config)
        text = get_type_hints(config).get("text")
        for kind in (config, text if isinstance(text, type) else config):
            for f in fields(kind):
                attribute = getattr(kind, f.name, f.default)
                stated = f.default is not MISSING and not isinstance(attribute, property)
                if stated and attribute != f.default:
                    wrong.append(f"{name}: {f.name}={f.default!r}, not {attribute!r}")
    assert not wrong


def test_the_defaults_are_those_of_transformers() -> None:
    assert configs.reference_defaults("llama")["hidden_act"] == "silu"
    assert configs.reference_defaults("gemma2")["attn_logit_softcapping"] == 50
    assert configs.reference_defaults("no-such-model") == {}
