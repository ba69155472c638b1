"""Seed-OSS against transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny.published import publish, published_deviation, refuse_or_run

from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, Subject, subject

BOOLS = ("attention_bias", "attention_out_bias")


class TestSeedOss(ArchitectureTests):
    name = "seed_oss"

    def test_published_biases(self, plugins: PluginManager) -> None:
        tiny = plugins.get("architectures", self.name).conformance.tiny
        shape = {**tiny, "attention_out_bias": False}
        with subject(plugins, self.name, config=shape) as published:
            assert published.off(published.engine()) <= BAR

    def test_dropout_has_no_effect(self, tiny: Subject, tmp_path: Path) -> None:
        loaded = publish(tiny, tmp_path, {"residual_dropout": 0.0})
        assert published_deviation(tiny, loaded) <= BAR

    @pytest.mark.parametrize("field", [*BOOLS, "residual_dropout", "head_dim"])
    def test_hostile_configs(self, tiny: Subject, tmp_path: Path, field: str) -> None:
        accepted = refuse_or_run(tiny, tmp_path, field)
        assert field not in BOOLS or set(accepted) <= {None, True}
