"""LFM2 with experts against transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny.configs import accepted, assert_parity
from tiny.experts import ExpertLayouts, assert_layout

from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import Subject

CHANGES: dict[str, dict[str, Any]] = {
    "no bias, all sparse": {"use_expert_bias": False, "num_dense_layers": 0},
    "weights as they are": {"norm_topk_prob": False},
}

ACCEPTED = {
    "moe_intermediate_size": set(),
    "num_dense_layers": {"negative", "zero", "huge"},
    "num_experts": set(),
    "num_experts_per_tok": set(),
    "use_expert_bias": {"true"},
    "routed_scaling_factor": {"negative", "zero", "huge"},
    "norm_topk_prob": {"true"},
    "layer_types": set[str](),
}


class TestLfm2Moe(ExpertLayouts, ArchitectureTests):
    name = "lfm2_moe"
    published = "model.layers.2.feed_forward.experts.0.w1.weight"
    stacked = "model.layers.2.feed_forward.experts.gate_up_proj"

    @pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
    def test_other_configs(self, changes: dict[str, Any], plugins: PluginManager) -> None:
        assert_parity(plugins, self.name, changes)

    def test_published_config(self, tiny: Subject, tmp_path: Path) -> None:
        """transformers 4's fields, and the older name of tie_word_embeddings."""
        shutil.copytree(tiny.folder, tmp_path, dirs_exist_ok=True)
        config = json.loads((tmp_path / "config.json").read_text())
        theta = config.pop("rope_parameters")["rope_theta"]
        config |= {"rope_theta": theta, "tie_embedding": config.pop("tie_word_embeddings")}
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert_layout(tiny, tmp_path, self.published)

    @pytest.mark.parametrize("field", ACCEPTED)
    def test_hostile_fields(self, field: str, plugins: PluginManager) -> None:
        assert accepted(plugins, self.name, field) == ACCEPTED[field]
