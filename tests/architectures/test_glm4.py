"""GLM-4-0414 against transformers, and folders as published."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny.published import publish, published_deviation, refuse_or_run

from ostro.architectures.glm4.names import gguf_config
from ostro.core.errors import ConfigError
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, Subject, subject


class TestGlm4(ArchitectureTests):
    name = "glm4"

    @pytest.mark.parametrize("stated", [{}, {"partial_rotary_factor": 0.5}])
    def test_published_rope(self, tiny: Subject, tmp_path: Path, stated: dict[str, float]) -> None:
        """Published files say rope_theta and maybe the factor at the top."""
        config = {"rope_theta": 10000.0, **stated}
        loaded = publish(tiny, tmp_path, config, dropped=("rope_parameters",))
        assert published_deviation(tiny, loaded) <= BAR

    def test_without_biases(self, plugins: PluginManager) -> None:
        """GLM-Z1-32B and GLM-4-32B have no biases, and rotate half a head."""
        tiny = plugins.get("architectures", self.name).conformance.tiny
        shape = {**tiny, "attention_bias": False}
        with subject(plugins, self.name, config=shape) as plain:
            assert plain.off(plain.engine()) <= BAR

    @pytest.mark.parametrize("field", ["attention_bias", "head_dim", "partial_rotary_factor"])
    def test_hostile_configs(self, tiny: Subject, tmp_path: Path, field: str) -> None:
        refuse_or_run(tiny, tmp_path, field)


def container(**keys: Any) -> Any:
    given = {f"glm4.{key.replace('__', '.')}": value for key, value in keys.items()}
    metadata = {"general.architecture": "glm4", **given}
    return SimpleNamespace(path=Path("x.gguf"), metadata=metadata, tensors={})


def test_rotated_part_of_a_gguf_file() -> None:
    """Whole heads are stated by no key, where a hub config would state half of them."""
    head = {"embedding_length": 64, "attention__head_count": 4}
    whole = gguf_config(container(**head, rope__dimension_count=16))
    half = gguf_config(container(**head, rope__dimension_count=8))
    assert whole["rope_parameters"]["partial_rotary_factor"] == 1.0
    assert half["rope_parameters"]["partial_rotary_factor"] == 0.5


def test_a_gguf_file_of_glm_4v_is_refused() -> None:
    with pytest.raises(ConfigError, match="dimension_sections"):
        gguf_config(container(rope__dimension_sections=[8, 12, 12, 0]))
