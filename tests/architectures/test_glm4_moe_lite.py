"""GLM-4 MoE Lite against transformers."""

from __future__ import annotations

from typing import Any

import pytest
from tiny.configs import accepted, assert_parity
from tiny.experts import ExpertLayouts

from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.architecture import ArchitectureTests

CHANGES: dict[str, dict[str, Any]] = {
    "first layer dense, whole queries": {"mlp_layer_types": None, "q_lora_rank": None},
    "pairs in halves": {"rope_interleave": False},
}

ACCEPTED = {"mlp_layer_types": set[str](), "rope_interleave": {"true"}}


class TestGlm4MoeLite(ExpertLayouts, ArchitectureTests):
    name = "glm4_moe_lite"
    published = "model.layers.0.mlp.experts.0.gate_proj.weight"
    stacked = "model.layers.0.mlp.experts.gate_up_proj"

    @pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
    def test_other_configs(self, changes: dict[str, Any], plugins: PluginManager) -> None:
        assert_parity(plugins, self.name, changes)

    @pytest.mark.parametrize("field", ACCEPTED)
    def test_hostile_fields(self, field: str, plugins: PluginManager) -> None:
        assert accepted(plugins, self.name, field) == ACCEPTED[field]
