"""Ministral against transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny.published import publish, published_deviation, refuse_or_run

from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, Subject, subject


class TestMinistral(ArchitectureTests):
    name = "ministral"

    def test_files_without_layer_types(self, plugins: PluginManager, tmp_path: Path) -> None:
        """Every layer has the window."""
        tiny = dict(plugins.get("architectures", self.name).conformance.tiny)
        del tiny["layer_types"]
        with subject(plugins, self.name, config=tiny) as made:
            assert made.off(made.engine()) <= BAR
            loaded = publish(made, tmp_path, {}, dropped=("layer_types",))
            assert published_deviation(made, loaded) <= BAR

    @pytest.mark.parametrize("field", ["sliding_window", "layer_types", "rope_parameters"])
    def test_hostile_configs(self, tiny: Subject, tmp_path: Path, field: str) -> None:
        refuse_or_run(tiny, tmp_path, field)
