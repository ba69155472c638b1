"""Qwen3.5 against transformers, and the order of value heads in GGUF files."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ostro.architectures.qwen3_5.model import Config, SparseConfig
from ostro.architectures.qwen3_5.tiled import TiledColumns, TiledRows, TiledStorage
from ostro.core.errors import CheckpointError, ConfigError, OstroError
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, Subject, deviation, subject


class TestQwen3_5(ArchitectureTests):
    name = "qwen3_5"


class TestQwen3_5Moe(ArchitectureTests):
    name = "qwen3_5_moe"


def publish(made: Subject, root: str, *, stacked: bool) -> None:
    """Rewrite the tensors as in a checkpoint with media, with a layer that predicts further tokens.

    Experts are stacked, as on the hub, or separate, as in FP8 files.
    """
    file = made.folder / "model.safetensors"
    tensors = {"mtp.fc.weight": torch.ones(64, 128), "model.visual.merger.norm.bias": torch.ones(8)}
    for name, tensor in made.reference.state_dict().items():
        there = name.replace("model.", f"{root}.", 1)
        stem, _, part = there.rpartition(".")
        if ".experts." not in there or stacked:
            tensors[there] = tensor.contiguous()
            continue
        parts = ("gate_proj", "up_proj") if part == "gate_up_proj" else ("down_proj",)
        for e, expert in enumerate(tensor):
            for each, weight in zip(parts, expert.chunk(len(parts)), strict=True):
                tensors[f"{stem}.{e}.{each}.weight"] = weight.contiguous()
    save_file(tensors, file, {"format": "pt"})
    published = {
        "attn_output_gate": True,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "full_attention_interval": 4,
    }
    config = made.folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | published))


@pytest.mark.sample(3)
@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("root", ["model", "model.language_model"])
@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_moe"])
def test_published_files(name: str, root: str, stacked: bool, plugins: PluginManager) -> None:
    with subject(plugins, name) as made:
        publish(made, root, stacked=stacked)
        assert f"{root}.layers.0.input_layernorm.weight" in load_file(
            made.folder / "model.safetensors"
        )
        logits = made.engine(made.load()).runner.logits(made.prompt)
        assert deviation(logits, made.run_reference(made.prompt)) <= BAR


@pytest.mark.parametrize("value", [-1, 0, 1 << 40, "x", [7, "y"], 1.5], ids=str)
@pytest.mark.parametrize(
    "field",
    [
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
        "full_attention_interval",
        "layer_types",
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
        "num_experts",
        "num_experts_per_tok",
    ],
)
def test_hostile_fields_are_refused(field: str, value: Any, plugins: PluginManager) -> None:
    tiny = plugins.get("architectures", "qwen3_5_moe").conformance.tiny
    with pytest.raises(OstroError):
        SparseConfig.from_hf({**tiny, field: value})


@pytest.mark.parametrize(
    "changes",
    [
        {"attn_output_gate": False},
        {"norm_topk_prob": False},
        {"decoder_sparse_step": 2},
        {"mlp_only_layers": [1]},
        {"linear_num_value_heads": 5},
        {"layer_types": ["linear_attention", "sliding_attention", "linear_attention"]},
        {"layer_types": ["linear_attention"]},
    ],
    ids=str,
)
def test_other_variants_are_refused(changes: dict[str, Any], plugins: PluginManager) -> None:
    tiny = plugins.get("architectures", "qwen3_5_moe").conformance.tiny
    with pytest.raises(ConfigError, match=next(iter(changes))):
        SparseConfig.from_hf({**tiny, **changes})


def test_a_quarter_of_a_head_is_rotated_by_default(plugins: PluginManager) -> None:
    tiny = plugins.get("architectures", "qwen3_5").conformance.tiny
    assert Config.from_hf(tiny).rope_parameters["partial_rotary_factor"] == 0.25
    given = {"rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.5}}
    assert Config.from_hf({**tiny, **given}).rope_parameters["partial_rotary_factor"] == 0.5


def test_value_heads_of_gguf_files_are_grouped() -> None:
    """Two key heads, three value heads each, of two rows; one row precedes them."""
    order = torch.tensor([9, 0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11])
    grouped = torch.tensor([9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])
    rows = TiledRows(2, 3, 2, start=1)
    assert torch.equal(rows.read(order), grouped)
    assert torch.equal(rows.write(grouped), order)
    with pytest.raises(CheckpointError, match="expected 13 rows"):
        rows.read(order[:-1])
    columns = TiledColumns(2, 3)
    assert torch.equal(columns.read(order[None, 1:]), grouped[None, 1:])
    assert torch.equal(columns.write(grouped[None, 1:]), order[None, 1:])
    with pytest.raises(CheckpointError, match="6 value heads"):
        columns.read(order[None])


def test_a_weight_in_tiled_order_multiplies_grouped_inputs(plugins: PluginManager) -> None:
    with subject(plugins, "qwen3_5") as made:
        (plain,) = made.load().model.model.layers[0].self_attn.out_proj.active_storages
    tiled = TiledStorage(plain, 2, 3)
    grouped = TiledColumns(2, 3).read(plain.dequantize())
    x = torch.randn(5, 96)
    assert torch.equal(tiled.dequantize(), grouped)
    torch.testing.assert_close(tiled.matmul(x), x @ grouped.t(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(tiled.row_norms_sq(), grouped.square().sum(-1))
    assert torch.equal(tiled.save()["weight"], plain.save()["weight"])
