"""Ministral 3 against transformers, alone and as the text model of Mistral 3."""

from __future__ import annotations

from typing import Any

import pytest

from ostro.architectures.ministral3 import ROPE, TINY
from ostro.architectures.ministral3.model import Config
from ostro.architectures.mistral3 import TINY as MISTRAL3
from ostro.core.errors import ConfigError
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, subject


class TestMinistral3(ArchitectureTests):
    name = "ministral3"

    def test_images_equal_the_reference(self, plugins: PluginManager) -> None:
        rope = {**ROPE, "original_max_position_embeddings": 32}
        text = {**TINY, "model_type": "ministral3", "max_position_embeddings": 512}
        config = {**MISTRAL3, "text_config": {**text, "rope_parameters": rope}}
        with subject(plugins, "mistral3", config=config) as made:
            assert made.off(made.engine()) <= BAR

    def test_files_without_rope_parameters_have_yarn(self, plugins: PluginManager) -> None:
        bare = {name: value for name, value in TINY.items() if name != "rope_parameters"}
        rule = Config.from_hf({**bare, "max_position_embeddings": 262144}).rope_parameters
        assert rule["rope_type"] == "yarn" and rule["original_max_position_embeddings"] == 16384


@pytest.mark.parametrize(
    "change",
    [
        {"llama_4_scaling_beta": None},
        {"llama_4_scaling_beta": "x"},
        {"llama_4_scaling_beta": -1.0},
        {"llama_4_scaling_beta": float("nan")},
        {"llama_4_scaling_beta": True},
        {"original_max_position_embeddings": None},
        {"original_max_position_embeddings": 0},
        {"original_max_position_embeddings": -8},
        {"original_max_position_embeddings": "x"},
        {"original_max_position_embeddings": 1 << 70},
    ],
    ids=str,
)
def test_hostile_configs_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Config.from_hf({**TINY, "rope_parameters": {**ROPE, **change}})
