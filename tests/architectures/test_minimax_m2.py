"""MiniMax-M2 against transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny.configs import accepted
from tiny.experts import ExpertLayouts, assert_layout
from torch import Tensor

from ostro.core.errors import ConfigError
from ostro.core.load.model import load_model
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, Subject, deviation

PUBLISHED: dict[str, Any] = {
    "rotary_dim": 8,
    "rope_theta": 5000000,
    "attn_type_list": [1, 1],
    "scoring_func": "sigmoid",
    "use_qk_norm": True,
    "qk_norm_type": "per_layer",
    "use_routing_bias": True,
    "shared_intermediate_size": 0,
    "num_mtp_modules": 3,
    "mtp_transformer_layers": 1,
    "use_mtp": True,
}
"""Fields of the published config.json."""

FP8 = {
    "activation_scheme": "dynamic",
    "fmt": "float8_e4m3fn",
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"],
}
"""The published quantization_config."""

ACCEPTED = {
    "rotary_dim": set(),
    "attn_type_list": {"empty list"},
    "num_mtp_modules": {"zero"},
    "scoring_func": set(),
    "use_qk_norm": {"true"},
    "qk_norm_type": set(),
    "use_routing_bias": {"true"},
    "shared_intermediate_size": {"zero"},
    "num_local_experts": set(),
    "num_experts_per_tok": set(),
}


def copy_with(source: Path, folder: Path, **fields: Any) -> dict[str, Tensor]:
    """Copy a checkpoint with other fields in config.json, and return its tensors."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    config.pop("rope_parameters")
    (folder / "config.json").write_text(json.dumps(config | fields))
    return load_file(folder / "model.safetensors")


def quantize(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A weight of at most 128 x 128 as FP8, its scale [1, 1], and the dequantized weight."""
    scale = weight.abs().max().view(1, 1) / 448
    q = (weight / scale).to(torch.float8_e4m3fn)
    return q, scale, q.float() * scale


class TestMiniMaxM2(ExpertLayouts, ArchitectureTests):
    name = "minimax_m2"
    published = "model.layers.0.block_sparse_moe.experts.0.w1.weight"
    stacked = "model.layers.0.mlp.experts.gate_up_proj"

    def test_published_folder(self, tiny: Subject, tmp_path: Path) -> None:
        """The published fields, and multi-token prediction layers."""
        theta = tiny.raw_config["rope_parameters"]["rope_theta"]
        tensors = copy_with(tiny.folder, tmp_path, **PUBLISHED | {"rope_theta": theta})
        tensors["model.layers.4.enorm.weight"] = torch.ones(64)
        save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
        assert "model.layers.0.block_sparse_moe.e_score_correction_bias" in tensors
        assert_layout(tiny, tmp_path, self.published)

    def test_published_fp8_blocks(self, tiny: Subject, tmp_path: Path) -> None:
        fields = PUBLISHED | {"quantization_config": FP8}
        tensors = copy_with(tiny.folder, tmp_path / "fp8", **fields)
        plain = copy_with(tiny.folder, tmp_path / "plain", **PUBLISHED)
        for name, weight in plain.items():
            if name.endswith("_proj.weight") or ".experts." in name:
                tensors[name], tensors[f"{name}_scale_inv"], plain[name] = quantize(weight)
        save_file(tensors, tmp_path / "fp8/model.safetensors", {"format": "pt"})
        save_file(plain, tmp_path / "plain/model.safetensors", {"format": "pt"})
        reference = type(tiny.reference).from_pretrained(tmp_path / "plain", dtype=torch.float32)
        with torch.inference_mode():
            expected = reference.eval()(torch.tensor([tiny.prompt])).logits[0]
        settings = Settings(dtype="float32", device="cpu", exact=True)
        loaded = load_model(tmp_path / "fp8", settings, tiny.plugins)
        assert any("F8_E4M3" in line for line in loaded.explain)
        assert deviation(tiny.engine(loaded).runner.logits(tiny.prompt), expected) <= BAR

    def test_layers_without_full_attention_are_refused(self, plugins: PluginManager) -> None:
        from ostro.architectures.minimax_m2.model import Config

        tiny = plugins.get("architectures", self.name).conformance.tiny
        with pytest.raises(ConfigError, match="attn_type_list has layers without full attention"):
            Config.from_hf({**tiny, "attn_type_list": [1, 0]})

    @pytest.mark.parametrize("field", ACCEPTED)
    def test_hostile_fields(self, field: str, plugins: PluginManager) -> None:
        assert accepted(plugins, self.name, field) == ACCEPTED[field]
