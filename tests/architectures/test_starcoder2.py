"""StarCoder2 against transformers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ostro.architectures.starcoder2 import TINY
from ostro.architectures.starcoder2.model import Config
from ostro.core.errors import ConfigError
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, subject


class TestStarcoder2(ArchitectureTests):
    name = "starcoder2"

    def test_untied_and_without_biases(self, plugins: PluginManager) -> None:
        shape = {**TINY, "use_bias": False, "tie_word_embeddings": False, "sliding_window": None}
        with subject(plugins, "starcoder2", config=shape) as tiny:
            assert tiny.off(tiny.engine()) <= BAR

    def test_published_config(self, plugins: PluginManager) -> None:
        """StarCoder2's config.json has dropout rates and no field for the tied head."""
        with subject(plugins, "starcoder2") as tiny:
            file = tiny.folder / "config.json"
            absent = ("rope_parameters", "tie_word_embeddings", "head_dim")
            raw = {k: v for k, v in json.loads(file.read_text()).items() if k not in absent}
            published = {
                "activation_function": "gelu_pytorch_tanh",
                "embedding_dropout": 0.1,
                "residual_dropout": 0.1,
                "mlp_type": "default",
                "norm_type": "layer_norm",
                "rope_theta": 10000.0,
            }
            file.write_text(json.dumps(raw | published))
            assert tiny.off(tiny.engine()) <= BAR


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"norm_epsilon": "small"}, "norm_epsilon='small'"),
        ({"norm_epsilon": -1.0}, "the epsilon of the layer norms, -1.0"),
        ({"norm_epsilon": 10**400}, "the epsilon of the layer norms, inf"),
        ({"use_bias": 1}, "use_bias=1 is not true or false"),
        ({"sliding_window": 0}, "sliding_window=0 is not positive"),
        ({"sliding_window": [8]}, "sliding_window="),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3"),
    ],
)
def test_hostile_config(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        Config.from_hf({**TINY, **changes})
