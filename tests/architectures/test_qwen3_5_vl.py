"""Qwen3.5 with experts, images and videos against transformers, and published files of both."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ostro.architectures.qwen3_5 import model as qwen3_5
from ostro.architectures.qwen3_5_vl.inputs import Inputs
from ostro.architectures.qwen3_5_vl.model import Config, SparseConfig
from ostro.core.errors import ConfigError, OstroError
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, Subject, subject


class TestQwen3_5MoeVL(ArchitectureTests):
    name = "qwen3_5_moe_vl"


def publish(made: Subject, *, stacked: bool) -> None:
    """Rewrite the tensors as on the hub, with a layer that predicts further tokens.

    Experts are stacked, or separate as in FP8 files.
    """
    tensors = {"mtp.fc.weight": torch.ones(64, 128), "mtp.layers.0.mlp.gate.weight": torch.ones(6)}
    for name, tensor in made.reference.state_dict().items():
        stem, _, part = name.rpartition(".")
        if ".experts." not in name or stacked:
            tensors[name] = tensor.contiguous()
            continue
        parts = ("gate_proj", "up_proj") if part == "gate_up_proj" else ("down_proj",)
        for e, expert in enumerate(tensor):
            for each, weight in zip(parts, expert.chunk(len(parts)), strict=True):
                tensors[f"{stem}.{e}.{each}.weight"] = weight.contiguous()
    save_file(tensors, made.folder / "model.safetensors", {"format": "pt"})


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "stacked"),
    [("qwen3_5_vl", True), ("qwen3_5_moe_vl", True), ("qwen3_5_moe_vl", False)],
)
def test_published_files(name: str, stacked: bool, plugins: PluginManager) -> None:
    with subject(plugins, name) as made:
        publish(made, stacked=stacked)
        found = load_file(made.folder / "model.safetensors")
        assert "model.language_model.layers.0.input_layernorm.weight" in found
        assert made.off(made.engine()) <= BAR


def changed(plugins: PluginManager, name: str, part: str, **fields: Any) -> dict[str, Any]:
    tiny = plugins.get("architectures", name).conformance.tiny
    return {**tiny, f"{part}_config": {**tiny[f"{part}_config"], **fields}}


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"mrope_section": [3, 3, 1]}, "three sections of the 6 rotated pairs"),
        ({"mrope_section": [4, 2]}, "three sections"),
        ({"mrope_section": [8, -1, -1]}, "three sections"),
        ({"mrope_section": "abc"}, "mrope_section='abc'"),
        ({"mrope_section": [3, 2, "1"]}, "mrope_section"),
        ({"mrope_section": 6}, "mrope_section=6"),
        ({"partial_rotary_factor": "0.25"}, "partial_rotary_factor='0.25'"),
        ({"partial_rotary_factor": float("nan")}, "partial_rotary_factor=nan"),
        ({"partial_rotary_factor": 1e300}, "partial_rotary_factor=1e"),
        ({"partial_rotary_factor": 0.5}, "12 rotated pairs"),
    ],
    ids=str,
)
def test_sections_that_do_not_fit_are_refused(
    rope: dict[str, Any], message: str, plugins: PluginManager
) -> None:
    tiny = plugins.get("architectures", "qwen3_5_vl").conformance.tiny
    given = {**tiny["text_config"]["rope_parameters"], **rope}
    with pytest.raises(ConfigError, match=message):
        Config.from_hf(changed(plugins, "qwen3_5_vl", "text", rope_parameters=given))


def test_published_sections_fit_published_heads(plugins: PluginManager) -> None:
    fields = {"head_dim": 256, "rope_parameters": {"rope_theta": 1e7}}
    config = Config.from_hf(changed(plugins, "qwen3_5_vl", "text", **fields))
    assert config.text.sections == (11, 11, 10)


@pytest.mark.parametrize("value", [-1, 0, 1 << 40, "x", [7, "y"], 1.5], ids=str)
@pytest.mark.parametrize("field", ["num_experts", "linear_num_value_heads", "layer_types"])
def test_hostile_fields_are_refused(field: str, value: Any, plugins: PluginManager) -> None:
    with pytest.raises(OstroError):
        SparseConfig.from_hf(changed(plugins, "qwen3_5_moe_vl", "text", **{field: value}))


def test_deepstack_features_are_refused(plugins: PluginManager) -> None:
    with pytest.raises(ConfigError, match="deepstack_visual_indexes"):
        Config.from_hf(changed(plugins, "qwen3_5_vl", "vision", deepstack_visual_indexes=[1]))
    Config.from_hf(changed(plugins, "qwen3_5_vl", "vision", deepstack_visual_indexes=[]))


def test_tokens_have_the_families_defaults(plugins: PluginManager, tmp_path: Any) -> None:
    assert Inputs({}, tmp_path).placeholders == {"image": 248056, "video": 248057}
    assert Inputs({"image_token_id": 5}, tmp_path).placeholders["image"] == 5


def test_a_published_config_is_read() -> None:
    """Qwen3.5-35B-A3B: no intermediate_size, and fields without effect."""
    text = {
        "attn_output_gate": True,
        "full_attention_interval": 4,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262144,
        "mlp_only_layers": [],
        "model_type": "qwen3_5_moe_text",
        "moe_intermediate_size": 512,
        "mtp_num_hidden_layers": 1,
        "num_attention_heads": 16,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 40,
        "num_key_value_heads": 2,
        "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": 512,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000,
            "rope_type": "default",
        },
        "vocab_size": 248320,
    }
    vision = {"deepstack_visual_indexes": [], "model_type": "qwen3_5_moe", "out_hidden_size": 2048}
    raw = {"model_type": "qwen3_5_moe", "text_config": text, "vision_config": vision}
    config = SparseConfig.from_hf(raw)
    assert config.text.head_dim == 256 and config.text.linear_num_value_heads == 32
    assert config.text.sections == (11, 11, 10) and config.image_token_id == 248056
    assert [config.text.attends(i) for i in range(4)] == [False, False, False, True]
    assert config.text.num_local_experts == 256 and config.text.norm_topk_prob
    assert qwen3_5.SparseConfig.from_hf(text).head_dim == 256
