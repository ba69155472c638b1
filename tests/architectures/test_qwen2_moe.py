"""Qwen2-MoE against transformers."""

from __future__ import annotations

from typing import Any

import pytest
from tiny.configs import accepted, assert_parity
from tiny.experts import ExpertLayouts

from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.architecture import ArchitectureTests

CHANGES: dict[str, dict[str, Any]] = {
    "weights of the chosen sum to one": {"norm_topk_prob": True},
    "every other layer": {"decoder_sparse_step": 2, "mlp_only_layers": []},
    "no windows": {"use_sliding_window": False, "mlp_only_layers": []},
    "no biases": {"qkv_bias": False},
}

ACCEPTED = {
    "qkv_bias": {"true"},
    "shared_expert_intermediate_size": set(),
    "moe_intermediate_size": set(),
    "num_experts": set(),
    "num_experts_per_tok": set(),
    "mlp_only_layers": {"empty list", "list"},
    "norm_topk_prob": {"true"},
    "max_window_layers": {"negative", "zero", "huge"},
}


class TestQwen2Moe(ExpertLayouts, ArchitectureTests):
    name = "qwen2_moe"
    published = "model.layers.0.mlp.experts.0.gate_proj.weight"
    stacked = "model.layers.0.mlp.experts.gate_up_proj"

    @pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
    def test_other_configs(self, changes: dict[str, Any], plugins: PluginManager) -> None:
        assert_parity(plugins, self.name, changes)

    @pytest.mark.parametrize("field", ACCEPTED)
    def test_hostile_fields(self, field: str, plugins: PluginManager) -> None:
        assert accepted(plugins, self.name, field) == ACCEPTED[field]
