"""Code World Model against transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny.published import publish, published_deviation, refuse_or_run

from ostro.core.plugins.manager import PluginManager
from ostro.core.records import resolve
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, Subject, subject


class TestCwm(ArchitectureTests):
    name = "cwm"

    def test_layers_by_default(self, tiny: Subject, tmp_path: Path) -> None:
        loaded = publish(tiny, tmp_path, {}, dropped=("layer_types",))
        assert published_deviation(tiny, loaded) <= BAR

    def test_rope_by_default(self, plugins: PluginManager) -> None:
        """The reference takes the rope of the published model if config.json states none."""
        tiny = dict(plugins.get("architectures", self.name).conformance.tiny)
        del tiny["rope_parameters"]
        with subject(plugins, self.name, config={**tiny, "max_position_embeddings": 16384}) as made:
            record = plugins.get("architectures", self.name)
            ours = resolve(record.config).from_hf({**tiny, "max_position_embeddings": 16384})
            theirs = made.raw_config["rope_parameters"]
            assert {key: ours.rope_parameters[key] for key in theirs} == theirs

    @pytest.mark.parametrize("field", ["sliding_window", "layer_types", "rope_parameters"])
    def test_hostile_configs(self, tiny: Subject, tmp_path: Path, field: str) -> None:
        refuse_or_run(tiny, tmp_path, field)
