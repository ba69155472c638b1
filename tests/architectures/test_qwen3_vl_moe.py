"""Qwen3-VL-MoE against transformers, with images and videos in the prompt."""

from __future__ import annotations

from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from ostro.architectures.qwen3_vl_moe import MIXTURE
from ostro.architectures.qwen3_vl_moe.model import Config
from ostro.core.errors import CheckpointError, ConfigError, OstroError
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, Subject, subject


class TestQwen3VLMoe(ArchitectureTests):
    name = "qwen3_vl_moe"


class TestQwen3VLMoeText(ArchitectureTests):
    name = "qwen3_vl_moe_text"


STACKS = ("gate_up_proj", "down_proj")


def rewrite(made: Subject, change: Any) -> None:
    """Replace the stacks of experts of a saved model."""
    file = made.folder / "model.safetensors"
    tensors = {}
    for name, tensor in load_file(file).items():
        more = change(name, tensor) if name.endswith(STACKS) and tensor.dim() == 3 else {}
        tensors |= more or {name: tensor}
    save_file(tensors, file, {"format": "pt"})


def turn(name: str, tensor: Any) -> dict[str, Any]:
    """As the files of the hub."""
    return {name: tensor.mT.contiguous()}


def separate(name: str, tensor: Any) -> dict[str, Any]:
    """As the FP8 files of the hub."""
    stem, _, kind = name.rpartition(".")
    parts = ("gate_proj", "up_proj") if kind == "gate_up_proj" else ("down_proj",)
    return {
        f"{stem}.{e}.{part}.weight": weight.contiguous()
        for e, expert in enumerate(tensor)
        for part, weight in zip(parts, expert.chunk(len(parts)), strict=True)
    }


@pytest.mark.sample(1)
@pytest.mark.parametrize("change", [None, turn, separate])
def test_stacked_and_separate_experts_are_read(plugins: PluginManager, change: Any) -> None:
    with subject(plugins, "qwen3_vl_moe") as made:
        file = load_file(made.folder / "model.safetensors")
        name = "model.language_model.layers.0.mlp.experts.gate_up_proj"
        assert tuple(file[name].shape) == (6, 48, 64)
        if change is not None:
            rewrite(made, change)
        assert made.off(made.engine()) <= BAR


def test_a_stack_of_another_shape_is_an_error(plugins: PluginManager) -> None:
    with subject(plugins, "qwen3_vl_moe") as made:
        rewrite(made, lambda name, tensor: {name: tensor[:, :7].contiguous()})
        with pytest.raises(CheckpointError, match="expert"):
            made.load()


@pytest.mark.parametrize("value", [-1, 0, 1 << 40, "x", [7, "y"], 1.5], ids=str)
@pytest.mark.parametrize("key", [*MIXTURE, "norm_topk_prob", "decoder_sparse_step"])
def test_hostile_fields_are_refused(plugins: PluginManager, key: str, value: Any) -> None:
    tiny = plugins.get("architectures", "qwen3_vl_moe").conformance.tiny
    with pytest.raises(OstroError):
        Config.from_hf({**tiny, "text_config": {**tiny["text_config"], key: value}})


def test_weights_without_renormalisation_are_refused(plugins: PluginManager) -> None:
    tiny = plugins.get("architectures", "qwen3_vl_moe").conformance.tiny
    raw = {**tiny, "text_config": {**tiny["text_config"], "norm_topk_prob": False}}
    with pytest.raises(ConfigError, match="norm_topk_prob=false"):
        Config.from_hf(raw)
