"""GLM-4 MoE against transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny.configs import accepted, assert_parity
from tiny.experts import ExpertLayouts, assert_layout

from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import Subject

CHANGES: dict[str, dict[str, Any]] = {
    "no norms on heads": {"use_qk_norm": False},
    "no biases": {"attention_bias": False},
    "no groups, all sparse": {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 0},
    "weights as they are": {"norm_topk_prob": False},
}

ACCEPTED = {
    "moe_intermediate_size": set(),
    "n_routed_experts": set(),
    "n_shared_experts": set(),
    "num_experts_per_tok": set(),
    "n_group": {"zero"},
    "topk_group": set(),
    "routed_scaling_factor": {"negative", "zero", "huge"},
    "first_k_dense_replace": {"negative", "zero", "huge"},
    "use_qk_norm": {"true"},
    "num_mtp_layers": {"zero"},
}


class TestGlm4Moe(ExpertLayouts, ArchitectureTests):
    name = "glm4_moe"
    published = "model.layers.1.mlp.experts.0.gate_proj.weight"
    stacked = "model.layers.1.mlp.experts.gate_up_proj"

    @pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
    def test_other_configs(self, changes: dict[str, Any], plugins: PluginManager) -> None:
        assert_parity(plugins, self.name, changes)

    def test_published_folder(self, tiny: Subject, tmp_path: Path) -> None:
        """transformers 4's fields, and two multi-token prediction layers."""
        shutil.copytree(tiny.folder, tmp_path, dirs_exist_ok=True)
        config = json.loads((tmp_path / "config.json").read_text())
        config.pop("num_mtp_layers", None)
        rope = config.pop("rope_parameters")
        config |= {
            "num_nextn_predict_layers": 2,
            "rope_theta": rope["rope_theta"],
            "rope_scaling": None,
            "partial_rotary_factor": 0.5,
        }
        (tmp_path / "config.json").write_text(json.dumps(config))
        tensors = load_file(tmp_path / "model.safetensors")
        tensors["model.layers.3.eh_proj.weight"] = torch.ones(64, 128)
        tensors["model.layers.4.shared_head.norm.weight"] = torch.ones(64)
        save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
        assert_layout(tiny, tmp_path, "model.layers.3.eh_proj.weight")

    def test_stacks_of_mtp_layers_are_ignored(self, tiny: Subject) -> None:
        assert tiny.names.read(["blk.3.ffn_down_exps.weight"], "gguf") == ([], [])
        assert len(tiny.names.read(["blk.2.ffn_down_exps.weight"], "gguf")[0]) == 8

    @pytest.mark.parametrize("field", ACCEPTED)
    def test_hostile_fields(self, field: str, plugins: PluginManager) -> None:
        assert accepted(plugins, self.name, field) == ACCEPTED[field]
