"""Gemma 4 against transformers."""

from __future__ import annotations

from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from ostro.architectures.gemma4 import EXPERTS, LAYERS, TINY
from ostro.architectures.gemma4.config import Config
from ostro.core.errors import OstroError, UsageError
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, Subject, deviation
from ostro.plugins.conformance.second_device import second_device

TABLE = "model.embed_tokens_per_layer"


class TestGemma4(ArchitectureTests):
    name = "gemma4"

    def test_keys_of_layers_that_share_them_are_skipped(self, tiny: Subject) -> None:
        """Published checkpoints contain them; they are not used."""
        file = tiny.folder / "model.safetensors"
        tensors = load_file(file)
        own = {name: t for name, t in tensors.items() if ".layers.0.self_attn.k_" in name}
        extra = {name.replace("layers.0", "layers.4"): t.clone() for name, t in own.items()}
        assert len(extra) == 2 and not extra.keys() & tensors.keys()
        save_file({**tensors, **extra}, file, {"format": "pt"})
        try:
            assert tiny.off(tiny.engine()) <= BAR
        finally:
            save_file(tensors, file, {"format": "pt"})

    def test_layers_that_share_keys_have_no_cache(self, tiny: Subject) -> None:
        groups = tiny.engine().runner.blocks.groups
        assert sorted(layer for group in groups for layer in group.layers) == [0, 1, 2]

    @pytest.mark.sample(1)
    @pytest.mark.parametrize(
        "rules", [f"{TABLE} = cpu:1", "model.layers.[1-5] = cpu:1", "model.layers.0 = cpu:1"]
    )
    @pytest.mark.parametrize("replay", [False, True])
    def test_parts_on_another_device(self, tiny: Subject, rules: str, replay: bool) -> None:
        with second_device():
            engine = tiny.engine(placement=rules, replay=replay)
            engine.runner.capture()
            assert deviation(engine.runner.logits(tiny.prompt), tiny.expected) <= BAR

    def test_layers_that_share_keys_are_on_one_device(self, tiny: Subject) -> None:
        with (
            second_device(),
            pytest.raises(UsageError, match=r"layers\.3 and model\.layers\.4 use one cache"),
        ):
            tiny.load(placement="model.layers.4 = cpu:1")

    @pytest.mark.slow
    def test_auto_keeps_layers_that_share_keys_together(self, tiny: Subject) -> None:
        """Layers 1, 3 and 4 use one cache, layers 2 and 5 another one."""
        splits = set()
        with second_device():
            for size in ("150KB", "200KB", "250KB", "300KB", "10MB"):
                loaded = tiny.load(device="cpu:1", placement=f"auto:{size}")
                units = loaded.placement.units
                devices = [units[f"model.layers.{i}"].device for i in range(6)]
                assert devices[1] == devices[3] == devices[4] and devices[2] == devices[5]
                splits.add(tuple(devices))
        assert len(splits) > 1


class TestGemma4Moe(ArchitectureTests):
    name = "gemma4_moe"


def test_heads_of_published_configs_and_of_those_of_transformers() -> None:
    """The former state the heads of layers without a window, the latter those of each layer."""
    shape = {**TINY, **LAYERS, **EXPERTS}
    heads = [Config.from_hf(shape).heads(i) for i in range(3)]
    full = {"head_dim": 32, "num_key_value_heads": 1}
    assert heads == [{"head_dim": 16, "num_key_value_heads": 2}, full, full]
    assert Config.from_hf({**TINY, "num_global_key_value_heads": 1}).heads(2) == {
        "head_dim": 32,
        "num_key_value_heads": 2,
    }, "num_global_key_value_heads applies with attention_k_eq_v only"
    stated = {"1": full, "2": full}
    without = {k: v for k, v in shape.items() if "global" not in k}
    again = Config.from_hf({**without, "per_layer_config": stated})
    assert [again.heads(i) for i in range(3)] == heads
    padded = Config.from_hf({**without, "per_layer_config": {"01": full, "02": full}})
    assert [padded.heads(i) for i in range(3)] == heads, "as of models with ten layers or more"


def test_the_last_layer_has_no_window() -> None:
    types = ["full_attention", "sliding_attention", "sliding_attention"]
    config = Config.from_hf({**TINY, **LAYERS, "layer_types": types, "num_kv_shared_layers": 0})
    assert [config.window(i) for i in range(3)] == [0, 8, 0]


def test_defaults_are_those_of_transformers() -> None:
    given = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 8}
    config = Config.from_hf({**given, "num_hidden_layers": 7})
    assert [config.window(i) for i in range(7)] == [512] * 5 + [0, 0]
    full = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}
    assert config.rope_parameters["full_attention"] == full
    assert config.heads(5) == {"head_dim": 512, "num_key_value_heads": 4}


HOSTILE: tuple[dict[str, Any], ...] = (
    *({"global_head_dim": value} for value in (0, -2, 3, 2**40, "x")),
    *({"num_kv_shared_layers": value} for value in (-1, 4, 6, 2**40, 1.5)),
    *({"hidden_size_per_layer_input": value} for value in (-1, 2**40, "x", [8])),
    *({"vocab_size_per_layer_input": value} for value in (0, 127, -5)),
    *({"final_logit_softcapping": value} for value in (0.0, -30.0, float("nan"), "x")),
    *({"use_bidirectional_attention": value} for value in ("all", "x", 1)),
    *({"pad_token_id": value} for value in (-1, 128, "x")),
    *({"sliding_window": value} for value in (0, -1, "x")),
    *({"layer_types": value} for value in (["full_attention"], ["x"] * 6, "x")),
    *({"rope_parameters": value} for value in ({"rope_theta": 1e4}, {"full_attention": {}}, 3)),
    *(
        {"per_layer_config": value}
        for value in (
            {"6": {"head_dim": 32}},
            {"x": {}},
            {"9" * 5000: {}},
            {"2": {"head_dim": 0}},
            {"2": {"head_dim": "x"}},
            {"2": {"num_key_value_heads": 3}},
            {"2": {"sliding_window": 4}},
            {"2": 3},
            {"5": {"head_dim": 64}},
        )
    ),
    {"attention_k_eq_v": True, "num_global_key_value_heads": 3},
    {"attention_k_eq_v": True, "num_global_key_value_heads": 0},
    {"enable_moe_block": True},
    *({**EXPERTS, "num_experts": value} for value in (0, 2**30, None, "x")),
    *({**EXPERTS, "top_k_experts": value} for value in (0, 7, None)),
    *({**EXPERTS, "moe_intermediate_size": value} for value in (0, 2**40, None)),
)


@pytest.mark.parametrize("changes", HOSTILE, ids=lambda changes: str(changes)[-60:])
def test_impossible_configs_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(OstroError):
        Config.from_hf({"model_type": "gemma4_text", **TINY, **changes})
