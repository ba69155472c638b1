"""ERNIE 4.5 against transformers, and folders as published."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny.published import publish, published_deviation, refuse_or_run

from ostro.core.errors import CheckpointError
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, Subject, subject


class TestErnie45(ArchitectureTests):
    name = "ernie4_5"

    def test_published_class_name(self, tiny: Subject, tmp_path: Path) -> None:
        loaded = publish(tiny, tmp_path, {"architectures": ["Ernie4_5_ForCausalLM"]})
        assert published_deviation(tiny, loaded) <= BAR

    def test_published_models_are_tied_and_unbiased(self, plugins: PluginManager) -> None:
        tiny = plugins.get("architectures", self.name).conformance.tiny
        shape = {**tiny, "use_bias": False, "tie_word_embeddings": True}
        with subject(plugins, self.name, config=shape) as tied:
            assert tied.off(tied.engine()) <= BAR

    def test_llamas_switches_have_no_effect(self, tiny: Subject, tmp_path: Path) -> None:
        loaded = publish(tiny, tmp_path, {"attention_bias": False, "mlp_bias": False})
        assert published_deviation(tiny, loaded) <= BAR

    def test_biases_that_the_config_denies(self, tiny: Subject, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="bias"):
            publish(tiny, tmp_path, {"use_bias": False})

    @pytest.mark.parametrize("field", ["use_bias", "head_dim"])
    def test_hostile_configs(self, tiny: Subject, tmp_path: Path, field: str) -> None:
        assert refuse_or_run(tiny, tmp_path, field) == ([True] if field == "use_bias" else [])
