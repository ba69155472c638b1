"""Fixtures for tests of UQFF: folders of a few tensors, and layers read by their quantizers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ostro.core.load.container import Container
from ostro.core.nn.storage import Storage, Stored
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Quantizer, TensorInfo, resolve

KEY = "model.layers.0.self_attn.k_proj"
GOLDEN = load_file(Path(__file__).with_name("golden.safetensors"))
"""Layers stored by mistral.rs 0.9.5, `<format>/<suffix>`; tests/peers/uqff.py writes the file."""

VERSION = {
    f"uqff.version.{part}": torch.tensor(n, dtype=torch.int64).to(torch.uint32)
    for part, n in (("major", 1), ("minor", 2), ("patch", 0))
}


@pytest.fixture(scope="session")
def golden() -> Mapping[str, Tensor]:
    return GOLDEN


@pytest.fixture
def layer() -> Callable[..., dict[str, Tensor]]:
    """The tensors of the layer in a format, under its key or another."""

    def of(format: str, key: str = KEY) -> dict[str, Tensor]:
        mine = {name: t for name, t in GOLDEN.items() if name.startswith(f"{format}/")}
        return {f"{key}.{name.removeprefix(f'{format}/')}": t for name, t in mine.items()}

    return of


Put = Callable[..., Path]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """Write a UQFF folder: shards of tensors, the version in the first, a residual, a config."""

    def write(
        *shards: Mapping[str, Tensor],
        stem: str = "q",
        version: Mapping[str, Tensor] = VERSION,
        residual: Mapping[str, Tensor] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> Path:
        for i, shard in enumerate(shards):
            held = {**(version if i == 0 else {}), **shard}
            save_file(held, tmp_path / f"{stem}-{i}.uqff", metadata={"uqff.version": "1.2.0"})
        norm = {"model.norm.weight": torch.ones(4)}
        save_file(norm if residual is None else dict(residual), tmp_path / "residual.safetensors")
        (tmp_path / "config.json").write_text(json.dumps(config or {}))
        return tmp_path

    return write


Read = Callable[..., Storage]


@pytest.fixture
def read(plugins: PluginManager) -> Read:
    """Read the layer of a container with the quantizer that claims it."""

    def storage(container: Container, shape: tuple[int, ...] = (8, 256), key: str = KEY) -> Storage:
        infos = dict(below(container, key))
        quantizer = plugins.claimant("quantizers", partial(claims, infos), key)
        assert quantizer is not None, f"{infos = } are claimed by nobody"
        stored = Stored(
            tensors={suffix: container.read(info.name) for suffix, info in infos.items()},
            infos=infos,
            shape=shape,
            device=torch.device("cpu"),
            dtype=torch.float32,
        )
        made: Storage = resolve(quantizer.storage).read(stored)
        return made

    return storage


def below(container: Container, key: str) -> Iterator[tuple[str, TensorInfo]]:
    for name, info in container.tensors.items():
        if name.startswith(f"{key}.") and not name.endswith(".bias"):
            yield name.removeprefix(f"{key}."), info


def claims(infos: Mapping[str, TensorInfo], quantizer: Quantizer) -> bool:
    return quantizer.claims(infos, {})
