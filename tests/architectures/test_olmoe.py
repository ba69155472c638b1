"""OLMoE and FlexOlmo against transformers."""

from __future__ import annotations

from typing import Any

import pytest
from tiny.configs import accepted, assert_parity
from tiny.experts import ExpertLayouts

from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.architecture import ArchitectureTests

CHANGES: dict[str, dict[str, Any]] = {
    "no clip": {"clip_qkv": None},
    "weights of the chosen sum to one": {"norm_topk_prob": True},
    "biases": {"attention_bias": True},
}

ACCEPTED = {
    "clip_qkv": {"huge"},
    "num_experts": set(),
    "num_experts_per_tok": set(),
    "norm_topk_prob": {"true"},
}


class TestOlmoe(ExpertLayouts, ArchitectureTests):
    name = "olmoe"
    published = "model.layers.0.mlp.experts.0.gate_proj.weight"
    stacked = "model.layers.0.mlp.experts.gate_up_proj"

    @pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
    def test_other_configs(self, changes: dict[str, Any], plugins: PluginManager) -> None:
        assert_parity(plugins, self.name, changes)

    @pytest.mark.parametrize("field", ACCEPTED)
    def test_hostile_fields(self, field: str, plugins: PluginManager) -> None:
        assert accepted(plugins, self.name, field) == ACCEPTED[field]


class TestFlexOlmo(ExpertLayouts, ArchitectureTests):
    name = "flex_olmo"
    published = "model.layers.0.mlp.experts.0.gate_proj.weight"
    stacked = "model.layers.0.mlp.experts.gate_up_proj"
