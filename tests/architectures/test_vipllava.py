"""ViP-LLaVA against transformers, with images in the prompt."""

from __future__ import annotations

from typing import Any

import pytest
from tiny.images import ImageTests

from ostro.architectures.llava.examples import prompted
from ostro.architectures.vipllava import LAYERS
from ostro.architectures.vipllava.model import Config
from ostro.core.errors import OstroError
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.parity import Subject


class TestVipLlava(ImageTests):
    name = "vipllava"
    prompted = staticmethod(prompted)

    def test_the_key_of_older_files_is_read(self, plugins: PluginManager) -> None:
        tiny = dict(plugins.get("architectures", "vipllava").conformance.tiny)
        assert tiny.pop("vision_feature_layer") == LAYERS["vision_feature_layer"]
        config = Config.from_hf({**tiny, "vision_feature_layers": [-2, -1, 1, 2]})
        assert config.vision_feature_layer == (3, 4, 1, 2)

    def test_published_names_are_read(self, tiny: Subject) -> None:
        files = [
            name.replace("vision_tower.", "vision_tower.vision_model.")
            for name in tiny.load().container.tensors
        ]
        found, left = tiny.names.read(files)
        assert not left and len(found) == len(files) - 2  # the last norm is not used

    @pytest.mark.parametrize(
        "change",
        [
            {"projector_layernorm_eps": -1.0},
            {"projector_layernorm_eps": "x"},
            {"vision_feature_layer": [1 << 40]},
            {"vision_feature_layer": []},
            {"vision_feature_layer": "x"},
            {"vision_feature_select_strategy": "full"},
            {"projector_hidden_act": 3},
        ],
        ids=str,
    )
    def test_hostile_fields_are_refused(
        self, plugins: PluginManager, change: dict[str, Any]
    ) -> None:
        tiny = plugins.get("architectures", "vipllava").conformance.tiny
        with pytest.raises(OstroError):
            Config.from_hf({**tiny, **change})
