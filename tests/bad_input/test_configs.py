"""Configs that lie: the field that cannot be is named before anything is made of it."""

from __future__ import annotations

from typing import Any

import pytest
from tiny.cli_runner import CliRunner
from tiny.model import change_config

from ostro.core.errors import ConfigError
from ostro.core.load import describe as loading

MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
LIES: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"num_attention_heads": 5, "num_key_value_heads": 5}, ("hidden_size=32", "heads=5")),
    ({"num_key_value_heads": 3}, ("num_attention_heads=4", "num_key_value_heads=3")),
    ({"rms_norm_eps": float("nan")}, ("rms_norm_eps=nan",)),
    ({"rms_norm_eps": float("inf")}, ("rms_norm_eps=inf",)),
    ({"rms_norm_eps": 10**400}, ("rms_norm_eps=inf",)),
    ({"rms_norm_eps": -1}, ("rms_norm_eps=-1",)),
    ({"rms_norm_eps": "small"}, ("rms_norm_eps='small' is not a number",)),
    ({"hidden_size": "32"}, ("hidden_size='32' is not an integer",)),
    ({"hidden_size": 32.5}, ("hidden_size=32.5 is not an integer",)),
    ({"num_hidden_layers": True}, ("num_hidden_layers=True is not an integer",)),
    ({"tie_word_embeddings": "yes"}, ("tie_word_embeddings='yes' is not true or false",)),
    ({"hidden_size": None}, ("no 'hidden_size'",)),
    ({"hidden_act": "telu"}, ("hidden_act='telu'", "silu")),
    ({"hidden_act": 3}, ("hidden_act=3 is not a string",)),
    ({"rope_scaling": {"rope_type": "spiral"}}, ("rope_type='spiral'", "yarn")),
    ({"rope_scaling": {"rope_type": ["yarn"]}}, ("rope_type=['yarn'] is not a string",)),
    ({"rope_scaling": {"rope_type": "yarn", "factor": "four"}}, ("factor='four'",)),
    ({"rope_scaling": {"rope_type": "linear"}}, ("'linear'", "'factor'")),
    ({"rope_scaling": "yarn"}, ("rope_scaling='yarn' is not an object",)),
    ({"rope_theta": -1}, ("rope_theta=-1",)),
    ({"rope_theta": "big"}, ("rope_theta='big'",)),
    ({"rope_theta": 10**400}, ("rope_theta=1",)),
    ({**MISTRAL, "layer_types": ["full_attention"]}, ("layer_types lists 1", "layers=2")),
    ({**MISTRAL, "layer_types": ["full_attention", "round"]}, ("'round'",)),
    ({**MISTRAL, "layer_types": "round"}, ("layer_types='round' is not a list",)),
    ({**MISTRAL, "sliding_window": -4}, ("sliding_window=-4",)),
    ({"quantization_config": "gptq"}, ("quantization_config='gptq' is not an object",)),
    ({"num_hidden_layers": 10_000_000}, ("num_hidden_layers=10000000", "21 tensors")),
    ({"vocab_size": 2**30}, ("vocab_size=1073741824", "144000 bytes")),
    ({"intermediate_size": 2**30}, ("intermediate_size=1073741824", "144000 bytes")),
    ({"head_dim": 2**30}, ("head_dim=1073741824", "144000 bytes")),
    ({"hidden_size": 2**30}, ("hidden_size=1073741824", "144000 bytes")),
]
SIZES = (
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
    "num_key_value_heads head_dim max_position_embeddings"
).split()
LIES += [({name: n}, (f"{name}={n}",)) for name in SIZES for n in (0, -8, 10**12)]


@pytest.mark.parametrize(("lie", "expected"), LIES, ids=lambda x: str(x)[:40])
def test_an_inconsistent_config_is_rejected(
    runner: CliRunner, lie: dict[str, Any], expected: tuple[str, ...]
) -> None:
    change_config(runner.folder, **lie)
    runner.assert_rejected(ConfigError, *expected)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"a": 1}{', "\udcff", "[" * 500, "5"])
def test_a_config_other_than_an_object_is_rejected(runner: CliRunner, text: str) -> None:
    (runner.folder / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    runner.assert_rejected(ConfigError, "config.json")


def test_a_huge_context_in_the_config_allocates_nothing(runner: CliRunner) -> None:
    change_config(runner.folder, max_position_embeddings=2**31 - 1)
    asked = loading.choose_context(None, type("C", (), {"max_position_embeddings": 2**31 - 1})())
    assert asked == 2**20
    assert runner.run("--context", "1000")[0] == 0


def test_an_unimplemented_config_key_is_rejected(runner: CliRunner) -> None:
    change_config(runner.folder, pretraining_tp=1, made_up=True, layer_norm_eps=1e-3)
    assert runner.run()[0] == 0, "keys without a known effect are ignored"
    change_config(runner.folder, is_causal=False)
    runner.assert_rejected(ConfigError, "is_causal=False", "--allow-config")
    assert runner.run("--allow-config", "is_causal")[0] == 0
    runner.assert_rejected(ConfigError, "is_causal", options=("--allow-config", "made_up"))
