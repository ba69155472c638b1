"""Phi-3.5-MoE against transformers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ostro.architectures.phimoe import TINY, changes
from ostro.architectures.phimoe.model import Config
from ostro.core.errors import ConfigError
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, subject

RULE = changes(8)["rope_parameters"]


class TestPhimoe(ArchitectureTests):
    name = "phimoe"

    def test_short_context(self, plugins: PluginManager) -> None:
        trained = {"original_max_position_embeddings": 256}
        shape = {**TINY, **trained, "rope_parameters": {**RULE, **trained}}
        with subject(plugins, "phimoe", config=shape) as tiny:
            assert tiny.off(tiny.engine()) <= BAR

    def test_plain_rope_and_no_biases(self, plugins: PluginManager) -> None:
        changed = {"attention_bias": False, "lm_head_bias": False, "sliding_window": None}
        shape = {**TINY, **changed, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
        with subject(plugins, "phimoe", config=shape) as tiny:
            assert tiny.off(tiny.engine()) <= BAR

    def test_published_folder(self, plugins: PluginManager) -> None:
        """Phi-3.5-MoE's class has another name, and its rope is in rope_scaling."""
        with subject(plugins, "phimoe") as tiny:
            file = tiny.folder / "config.json"
            raw = json.loads(file.read_text())
            scaling = {k: v for k, v in raw.pop("rope_parameters").items() if k != "rope_theta"}
            published = {
                "architectures": ["PhiMoEForCausalLM"],
                "auto_map": {"AutoModelForCausalLM": "modeling_phimoe.PhiMoEForCausalLM"},
                "input_jitter_noise": 0.01,
                "rope_scaling": {"type": scaling.pop("rope_type"), **scaling},
                "rope_theta": 10000.0,
            }
            file.write_text(json.dumps(raw | published))
            assert tiny.off(tiny.engine()) <= BAR


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"num_experts_per_tok": 1}, "num_experts_per_tok=1"),
        ({"num_experts_per_tok": 3}, "num_experts_per_tok=3"),
        ({"num_local_experts": 0}, "the number of experts, 0"),
        ({"router_jitter_noise": -0.1}, "router_jitter_noise=-0.1"),
        ({"router_jitter_noise": 10**400}, "router_jitter_noise=inf"),
        ({"router_jitter_noise": "low"}, "router_jitter_noise='low'"),
        ({"attention_bias": "yes"}, "attention_bias='yes'"),
        ({"lm_head_bias": 1}, "lm_head_bias=1"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings=true"),
        ({"rope_parameters": {**RULE, "rope_type": "yarn"}}, "rope_type='yarn'"),
        ({"rope_parameters": {**RULE, "long_mscale": None}}, "long_mscale=None"),
        ({"rope_parameters": {**RULE, "short_mscale": True}}, "short_mscale=True"),
        ({"rope_parameters": {**RULE, "short_mscale": "1"}}, "short_mscale='1'"),
        (
            {"rope_parameters": {**RULE, "original_max_position_embeddings": -1}},
            "original_max_position_embeddings=-1",
        ),
    ],
)
def test_hostile_config(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        Config.from_hf({**TINY, **changed})


def test_missing_theta_is_that_of_the_class() -> None:
    rule = {k: v for k, v in RULE.items() if k != "rope_theta"}
    assert Config.from_hf({**TINY, "rope_parameters": rule}).rope_parameters["rope_theta"] == 1e6
