"""Granite with experts against transformers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny.configs import accepted
from tiny.experts import ExpertLayouts, assert_layout

from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance import references
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import STD, Subject

ACCEPTED = {
    "shared_intermediate_size": {"zero"},
    "num_local_experts": set(),
    "num_experts_per_tok": set(),
}


class TestGraniteMoe(ExpertLayouts, ArchitectureTests):
    name = "granitemoe"
    published = "model.layers.0.block_sparse_moe.input_linear.weight"
    stacked = "model.layers.0.block_sparse_moe.experts.gate_up_proj"

    def test_class_without_shared_mlp(self, plugins: PluginManager, tmp_path: Path) -> None:
        record = plugins.get("architectures", self.name)
        tested = replace(record.conformance, reference="transformers:GraniteMoeForCausalLM")
        plain = replace(record, conformance=tested)
        shape = {k: v for k, v in tested.tiny.items() if k != "shared_intermediate_size"}
        reference = references.build(plain, shape, STD, plugins)
        references.save(plain, reference, shape, tmp_path)
        tiny = Subject(plain, reference, tmp_path, plugins, shape, STD)
        assert tiny.raw_config["architectures"] == ["GraniteMoeForCausalLM"]
        assert_layout(tiny, tmp_path, self.published)

    @pytest.mark.parametrize("field", ACCEPTED)
    def test_hostile_fields(self, field: str, plugins: PluginManager) -> None:
        assert accepted(plugins, self.name, field) == ACCEPTED[field]
