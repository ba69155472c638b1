"""Hunyuan (dense) against transformers, and folders as published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny.published import publish, published_deviation, refuse_or_run

from ostro.core.errors import ConfigError
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import resolve
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, Subject, subject

SCALING = {
    "alpha": 50.0,
    "beta_fast": 32,
    "beta_slow": 1,
    "factor": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "type": "dynamic",
}
STATED = {
    "attention_head_dim": 16,
    "cla_share_factor": 2,
    "norm_type": "rms",
    "use_cla": False,
    "use_qk_norm": True,
    "use_rotary_pos_emb": True,
}


class TestHunyuanV1Dense(ArchitectureTests):
    name = "hunyuan_v1_dense"

    def test_published_config(self, tiny: Subject, tmp_path: Path) -> None:
        config = {**STATED, "rope_theta": 10000.0, "rope_scaling": SCALING}
        loaded = publish(tiny, tmp_path, config, dropped=("rope_parameters",))
        assert published_deviation(tiny, loaded) <= BAR

    @pytest.mark.parametrize(
        "rope", [{"rope_type": "default"}, {"rope_type": "dynamic", "factor": 2.0}]
    )
    def test_rope_without_alpha(self, plugins: PluginManager, rope: dict[str, Any]) -> None:
        tiny = plugins.get("architectures", self.name).conformance.tiny
        shape = {**tiny, "rope_parameters": {"rope_theta": 1000.0, **rope}}
        with subject(plugins, self.name, config={**shape, "tie_word_embeddings": True}) as plain:
            assert plain.off(plain.engine()) <= BAR

    @pytest.mark.parametrize(
        "changes", [{"use_qk_norm": False}, {"use_cla": True}], ids=["use_qk_norm", "use_cla"]
    )
    def test_refused_fields(self, tiny: Subject, changes: dict[str, bool]) -> None:
        [(name, value)] = changes.items()
        with pytest.raises(ConfigError, match=f"{name}={value}"):
            resolve(tiny.record.config).from_hf({**tiny.shape, **changes})

    @pytest.mark.parametrize("field", ["use_qk_norm", "use_cla"])
    def test_hostile_configs(self, tiny: Subject, tmp_path: Path, field: str) -> None:
        accepted = refuse_or_run(tiny, tmp_path, field)
        assert accepted == ([None, True] if field == "use_qk_norm" else [None])

    @pytest.mark.parametrize("alpha", ["x", [1], {"x": 1}, -1, 1e300, float("nan"), float("inf")])
    def test_hostile_alphas(self, tiny: Subject, tmp_path: Path, alpha: Any) -> None:
        rule = {**tiny.raw_config["rope_parameters"], "alpha": alpha}
        with pytest.raises(ConfigError, match="alpha="):
            publish(tiny, tmp_path, {"rope_parameters": rule})
