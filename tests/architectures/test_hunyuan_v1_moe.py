"""Hunyuan with experts against transformers, and folders as published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny.configs import accepted
from tiny.experts import ExpertLayouts
from tiny.published import publish, published_deviation

from ostro.core.errors import ConfigError
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import resolve
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, Subject, deviation, subject

SCALING = {
    "alpha": 50.0,
    "beta_fast": 32,
    "beta_slow": 1,
    "factor": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "type": "dynamic",
}
PUBLISHED = {
    "attention_head_dim": 16,
    "cla_share_factor": 2,
    "moe_drop_tokens": False,
    "moe_intermediate_size": [96, 96],
    "moe_layer_num_skipped": 0,
    "num_shared_expert": [1, 1],
    "rope_scaling": SCALING,
    "rope_theta": 10000.0,
    "use_cla": False,
    "use_mixed_mlp_moe": True,
    "use_qk_norm": True,
}

ACCEPTED = {
    "moe_topk": set[str](),
    "num_experts": set[str](),
    "moe_intermediate_size": {"empty list"},
    "num_shared_expert": {"empty list"},
    "moe_layer_num_skipped": {"zero"},
    "use_mixed_mlp_moe": {"true"},
    "norm_topk_prob": {"true"},
}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a list too short": ({"num_hidden_layers": 3}, r"moe_topk=\(3, 2\)"),
    "more than all": ({"moe_topk": [7, 2]}, r"moe_topk=\(7, 2\) is not .*num_experts=6"),
    "counts differ": ({"num_experts": [6, 4]}, "differs between layers"),
    "another width": ({"moe_intermediate_size": [96, 48]}, "moe_intermediate_size="),
    "two shared experts": ({"num_shared_expert": [2, 2]}, "num_shared_expert="),
}


class TestHunyuanV1Moe(ExpertLayouts, ArchitectureTests):
    name = "hunyuan_v1_moe"
    published = "model.layers.0.mlp.experts.0.gate_proj.weight"
    stacked = "model.layers.0.mlp.experts.gate_up_proj"

    def test_published_config(self, tiny: Subject, tmp_path: Path) -> None:
        loaded = publish(tiny, tmp_path, PUBLISHED, dropped=("rope_parameters",))
        assert "model.layers.0.mlp.gate.wg.weight" in loaded.container.tensors
        assert published_deviation(tiny, loaded) <= BAR

    def test_one_number_for_all_layers(self, plugins: PluginManager) -> None:
        config = {**plugins.get("architectures", self.name).conformance.tiny, "moe_topk": 2}
        with subject(plugins, self.name, config=config) as other:
            logits = other.engine().runner.logits(other.prompt)
            assert deviation(logits, other.run_reference(other.prompt)) <= BAR

    @pytest.mark.parametrize(("changes", "error"), REFUSED.values(), ids=REFUSED)
    def test_refused_configs(
        self, changes: dict[str, Any], error: str, plugins: PluginManager
    ) -> None:
        record = plugins.get("architectures", self.name)
        with pytest.raises(ConfigError, match=error):
            resolve(record.config).from_hf({**record.conformance.tiny, **changes})

    @pytest.mark.parametrize("field", ACCEPTED)
    def test_hostile_fields(self, field: str, plugins: PluginManager) -> None:
        assert accepted(plugins, self.name, field) == ACCEPTED[field]
