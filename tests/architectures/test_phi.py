"""Phi against transformers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ostro.architectures.phi import TINY
from ostro.architectures.phi.model import Config
from ostro.core.errors import ConfigError
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, subject


class TestPhi(ArchitectureTests):
    name = "phi"

    def test_layer_norms_on_heads(self, plugins: PluginManager) -> None:
        with subject(plugins, "phi", config={**TINY, "qk_layernorm": True}) as tiny:
            assert tiny.off(tiny.engine()) <= BAR

    def test_published_config(self, plugins: PluginManager) -> None:
        """Phi-2's config.json has dropout rates, and the part of the heads at the top."""
        with subject(plugins, "phi") as tiny:
            file = tiny.folder / "config.json"
            raw = {k: v for k, v in json.loads(file.read_text()).items() if k != "rope_parameters"}
            published = {
                "embd_pdrop": 0.0,
                "resid_pdrop": 0.1,
                "rope_scaling": None,
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
                "qk_layernorm": False,
                "num_key_value_heads": None,
            }
            file.write_text(json.dumps(raw | published))
            assert tiny.off(tiny.engine()) <= BAR


def test_half_of_a_head_rotates_by_default() -> None:
    raw = {k: v for k, v in TINY.items() if k != "partial_rotary_factor"}
    assert Config.from_hf(raw).rope_parameters["partial_rotary_factor"] == 0.5


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"layer_norm_eps": "small"}, "layer_norm_eps='small'"),
        ({"layer_norm_eps": -1.0}, "the epsilon of the layer norms, -1.0"),
        ({"layer_norm_eps": 10**400}, "the epsilon of the layer norms, inf"),
        ({"layer_norm_eps": 1}, "the epsilon of the layer norms, 1.0"),
        ({"qk_layernorm": 1}, "qk_layernorm=1 is not true or false"),
        ({"qk_layernorm": "yes"}, "qk_layernorm='yes'"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings=true"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3"),
    ],
)
def test_hostile_config(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        Config.from_hf({**TINY, **changes})
