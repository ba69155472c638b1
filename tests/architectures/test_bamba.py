"""Bamba against transformers."""

from __future__ import annotations

from typing import Any

import pytest

from ostro.architectures.bamba.model import Config
from ostro.core.errors import ConfigError
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.architecture import ArchitectureTests


class TestBamba(ArchitectureTests):
    name = "bamba"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attn_layer_indices": [3]}, "attn_layer_indices has layer 3"),
        ({"attn_layer_indices": ["1"]}, "attn_layer_indices='1' is not an integer"),
        ({"mamba_d_head": 15}, "head_dim=15"),
        ({"mamba_d_head": "big"}, "mamba_d_head='big' is not an integer"),
        ({"mamba_d_head": -16}, "head_dim"),
        ({"mamba_n_heads": 0}, "not within 1"),
        ({"mamba_n_groups": 3}, "n_groups=3"),
        ({"mamba_n_groups": 0}, "n_groups=0"),
        ({"mamba_d_state": 1 << 20}, "state_size"),
        ({"mamba_d_conv": 0}, "conv_kernel=0"),
        ({"mamba_expand": -2}, "intermediate_size=-128"),
        ({"time_step_limit": [2.0, 1.0]}, "time_step_limit"),
        ({"time_step_limit": [0.5]}, "time_step_limit"),
        ({"hidden_act": "relu"}, "hidden_act"),
    ],
    ids=str,
)
def test_fields_out_of_range_are_refused(
    changes: dict[str, Any], message: str, plugins: PluginManager
) -> None:
    tiny = plugins.get("architectures", "bamba").conformance.tiny
    with pytest.raises(ConfigError, match=message):
        Config.from_hf({**tiny, **changes})


def test_the_width_of_heads_is_derived(plugins: PluginManager) -> None:
    """Published files have mamba_d_head "auto" and further fields without effect."""
    tiny = plugins.get("architectures", "bamba").conformance.tiny
    published = {"mamba_d_head": "auto", "attn_rotary_emb": 8, "num_logits_to_keep": 1}
    config = Config.from_hf({**tiny, **published, "model_type": "bamba"})
    assert config.mixer().head_dim == 16
    assert config.rope_parameters["partial_rotary_factor"] == 0.5
