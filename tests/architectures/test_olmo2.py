"""OLMo 2 and 3 against transformers, and a folder of OLMo 3 as published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny.published import publish, published_deviation, refuse_or_run

from ostro.core.errors import ConfigError
from ostro.core.records import resolve
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, Subject


class TestOlmo2(ArchitectureTests):
    name = "olmo2"


class TestOlmo3(ArchitectureTests):
    name = "olmo3"

    def test_published_rope_scaling(self, tiny: Subject, tmp_path: Path) -> None:
        """It applies to full layers only."""
        full = tiny.raw_config["rope_parameters"]["full_attention"]
        scaling = {key: value for key, value in full.items() if key != "rope_theta"}
        rope = {"rope_theta": full["rope_theta"], "rope_scaling": scaling}
        loaded = publish(tiny, tmp_path, rope, dropped=("rope_parameters", "layer_types"))
        assert published_deviation(tiny, loaded) <= BAR

    def test_theta_by_default(self, tiny: Subject) -> None:
        shape = {key: value for key, value in tiny.shape.items() if key != "rope_parameters"}
        rules = resolve(tiny.record.config).from_hf(shape).rope_parameters
        assert {kind: rule["rope_theta"] for kind, rule in rules.items()} == {
            "full_attention": 500000.0,
            "sliding_attention": 500000.0,
        }

    @pytest.mark.parametrize("field", ["sliding_window", "layer_types", "rope_parameters"])
    def test_hostile_configs(self, tiny: Subject, tmp_path: Path, field: str) -> None:
        refuse_or_run(tiny, tmp_path, field)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"layer_types": ["full_attention"]}, "layer_types lists 1 layers"),
            ({"layer_types": ["chunked_attention"] * 4}, "'chunked_attention'"),
            ({"sliding_window": 0}, "sliding_window=0"),
            ({"rope_parameters": {"full_attention": {"rope_theta": -1}}}, "rope_theta=-1"),
        ],
    )
    def test_refused_layers(self, tiny: Subject, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            resolve(tiny.record.config).from_hf({**tiny.shape, **changes})
