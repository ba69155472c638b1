"""Granite 4.0 against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostro.architectures.granitemoehybrid import DENSE
from ostro.architectures.granitemoehybrid.model import Config
from ostro.core.errors import ConfigError
from ostro.core.load.model import load_model
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.plugins.conformance.architecture import ArchitectureTests
from ostro.plugins.conformance.parity import BAR, Subject, deviation, subject

FLOAT32 = Settings(dtype="float32", device="cpu")


class TestGraniteMoeHybrid(ArchitectureTests):
    name = "granitemoehybrid"

    def test_names_of_transformers_5(self, tiny: Subject, tmp_path: Path) -> None:
        tiny.reference.save_pretrained(tmp_path, save_original_format=False)
        loaded = load_model(tmp_path, FLOAT32, tiny.plugins)
        assert "model.layers.0.block_sparse_moe.experts.gate_up_proj" in loaded.container.tensors
        logits = tiny.engine(loaded).runner.logits(tiny.prompt)
        assert deviation(logits, tiny.run_reference(tiny.prompt)) <= BAR


CHANGES: dict[str, dict[str, Any]] = {
    "dense": DENSE,
    "dense without rope": {**DENSE, "position_embedding_type": "nope"},
    "experts with rope": {"position_embedding_type": "rope"},
    "attention only": {**DENSE, "layer_types": ["full_attention"] * 3},
    "biases": {"attention_bias": True, "mamba_proj_bias": True, "mamba_conv_bias": False},
}


@pytest.mark.parametrize("name", CHANGES)
def test_variants(name: str, plugins: PluginManager) -> None:
    """config.json as published: other names of the layer types, and fields of the training."""
    tiny = plugins.get("architectures", "granitemoehybrid").conformance.tiny
    with subject(plugins, "granitemoehybrid", config={**tiny, **CHANGES[name]}) as variant:
        file = variant.folder / "config.json"
        raw = json.loads(file.read_text())
        old = {"linear_attention": "mamba", "full_attention": "attention"}
        raw["layer_types"] = [old[kind] for kind in raw["layer_types"]]
        raw |= {"normalization_function": "rmsnorm", "init_method": "mup", "rope_scaling": None}
        file.write_text(json.dumps(raw))
        logits = variant.engine(variant.load()).runner.logits(variant.prompt)
        assert deviation(logits, variant.run_reference(variant.prompt)) <= BAR


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["mamba"]}, "layer_types lists 1 layers"),
        ({"layer_types": ["mamba", "attention", "conv"]}, "layer_types has 'conv'"),
        ({"layer_types": ["mamba", 3, None]}, "layer_types"),
        ({"position_embedding_type": "learned"}, "position_embedding_type='learned'"),
        ({"num_local_experts": -1}, "num_local_experts=-1"),
        ({"num_local_experts": 1 << 30}, "num_local_experts"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok=0"),
        ({"num_experts_per_tok": 7}, "num_experts_per_tok=7"),
        ({"shared_intermediate_size": 0}, "shared_intermediate_size=0"),
        ({"shared_intermediate_size": "48"}, "shared_intermediate_size='48'"),
        ({"residual_multiplier": float("nan")}, "residual_multiplier"),
        ({"mamba_n_heads": 7}, "num_heads=7"),
    ],
    ids=str,
)
def test_fields_out_of_range_are_refused(
    changes: dict[str, Any], message: str, plugins: PluginManager
) -> None:
    tiny = plugins.get("architectures", "granitemoehybrid").conformance.tiny
    with pytest.raises(ConfigError, match=message):
        Config.from_hf({**tiny, **changes})
