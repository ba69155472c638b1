"""The dummy checkpoint: whole models of noise, the same each time, in published shapes."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import pytest
import torch

from ostro.core.engine.startup.build import build_engine
from ostro.core.errors import CheckpointError, UnsupportedArchitecture, UsageError
from ostro.core.load.model import load_model
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.plugins.checkpoints.dummy.container import SHAPES, STD, open_dummy
from ostro.plugins.conformance.parity import greedy

WEIGHTS = {"qwen3-0.6b": 596.0, "qwen3-4b": 4022.5, "llama-1b": 1235.8, "llama-8b": 8030.3}
"""Millions of parameters that the models are published with."""


@pytest.mark.parametrize("shape", WEIGHTS)
def test_has_as_many_weights_as_the_published_model(shape: str, plugins: PluginManager) -> None:
    container = open_dummy(shape, plugins)
    count = sum(prod(info.shape) for info in container.tensors.values())
    assert count / 1e6 == pytest.approx(WEIGHTS[shape], abs=0.06)
    for info in container.tensors.values():
        assert info.nbytes == prod(info.shape) * {"BF16": 2, "F32": 4}[info.format]


def test_every_shape_is_tested() -> None:
    assert {file.stem for file in SHAPES.iterdir()} == set(WEIGHTS)


def test_reads_the_same_noise_each_time(plugins: PluginManager) -> None:
    name = "model.layers.3.mlp.up_proj.weight"
    first = open_dummy("qwen3-0.6b", plugins).read(name)
    container = open_dummy("qwen3-0.6b", plugins)
    assert torch.equal(container.read(name), first)
    assert first.shape == (3072, 1024) and first.dtype == torch.bfloat16
    assert float(first.float().std()) == pytest.approx(STD, rel=0.01)
    assert len(torch.unique(first[:, :8], dim=0)) == 3072, "rows repeat"
    other = container.read("model.layers.4.mlp.up_proj.weight")
    assert not torch.equal(other, first)
    norm = container.read("model.layers.3.input_layernorm.weight")
    assert float(norm.mean()) == pytest.approx(1, abs=0.01) and float(norm.std()) > STD / 2


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gemma2", "gemma3"])
def test_any_config_makes_a_model_that_runs(
    name: str, plugins: PluginManager, tmp_path: Path
) -> None:
    record = plugins.get("architectures", name)
    config = {**record.conformance.tiny, "architectures": list(record.classes)}
    (tmp_path / "config.json").write_text(json.dumps(config))
    settings = Settings(dtype="float32", device="cpu", dummy_weights=str(tmp_path))
    loaded = load_model(tmp_path, settings, plugins)
    norm = loaded.model.model.norm.weight
    assert float(norm.mean()) == pytest.approx(1, abs=0.02), "also where a checkpoint holds w - 1"
    engine = build_engine(loaded, settings, plugins, [], rows=64, block=16, blocks=16)
    (tokens,) = greedy(engine, [[1, 2, 3, 4, 5]], 8)
    assert len(tokens) == 8


def test_what_is_no_shape_is_refused(plugins: PluginManager, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"qwen3-06b: neither a path nor one of .*nearest: qwen3"):
        open_dummy("qwen3-06b", plugins)
    (tmp_path / "config.json").write_text('{"architectures": ["Nobody"]}')
    with pytest.raises(UnsupportedArchitecture):
        open_dummy(str(tmp_path), plugins)
    with pytest.raises(CheckpointError, match="no tensor 'lm_head"):
        open_dummy("qwen3-0.6b", plugins).read("lm_head.weight")
