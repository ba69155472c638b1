"""A container that generates its tensors on reading: the same noise for the same name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from ostro import Names, TensorInfo, resolve
from ostro.checkpoints import PluginManager, Transform, read_config, weight_slots
from ostro.errors import CheckpointError, UsageError, nearest

SHAPES = Path(__file__).parent / "shapes"
STD = 0.02
PERIOD = 4_194_301  # a prime, so that rows of a weight differ


def open_dummy(shape: str, plugins: PluginManager) -> Dummy:
    """Open the shape of a published model ("qwen3-0.6b"), or of the config.json at a path.

    The tensors are those of the architecture's model, with their hub names. Raises UsageError for
    an unknown shape, and the errors of reading a config.
    """
    path = SHAPES / f"{shape}.json"
    if not path.is_file():
        path = Path(shape)
    if not path.exists():
        known = sorted(file.stem for file in SHAPES.glob("*.json"))
        raise UsageError(
            f"--dummy-weights {shape}: neither a path nor one of {', '.join(known)}"
            f"{nearest(shape, known)}"
        )
    raw = read_config(path)
    architecture = plugins.architecture_for(raw.get("architectures") or [], config=raw)
    config = resolve(architecture.config).from_hf(raw)
    names = resolve(architecture.names)(config) if architecture.names else Names()
    entries = {}
    for slot in weight_slots(resolve(architecture.model)(config)):
        named = names.write(slot.name if slot.kind == "tensor" else f"{slot.name}.weight")
        format = "BF16" if slot.kind == "storage" else "F32"
        nbytes = prod(slot.shape) * (2 if slot.kind == "storage" else 4)
        info = TensorInfo(
            name=named.theirs, shape=slot.shape, format=format, nbytes=nbytes, file=path.name
        )
        centre = 1.0 if slot.kind == "tensor" and slot.name.endswith("norm.weight") else 0.0
        entries[named.theirs] = DummyTensor(info, centre, named.transform)
    return Dummy(path, raw, entries)


@dataclass(frozen=True)
class DummyTensor:
    """A tensor to generate: noise around `centre`, before the transform's `write`."""

    info: TensorInfo
    centre: float
    transform: Transform | None


class Dummy:
    """A `Container` of noise: matrices N(0, 0.02) in bfloat16, norms around 1."""

    def __init__(self, path: Path, raw: dict[str, Any], entries: Mapping[str, DummyTensor]) -> None:
        self.path, self.raw, self.entries = path, raw, entries
        self.tensors = {name: entry.info for name, entry in entries.items()}
        self.metadata: Mapping[str, Any] = {}

    @cached_property
    def noise(self) -> Tensor:
        """One period of noise; each tensor is a stretch of it that its name determines."""
        generator = torch.Generator().manual_seed(0)
        return torch.empty(PERIOD).normal_(0, STD, generator=generator).bfloat16()

    def read(self, name: str) -> Tensor:
        """As `Container.read`."""
        if name not in self.entries:
            raise CheckpointError(
                f"{self.path.name}: no tensor {name!r}{nearest(name, self.tensors)}"
            )
        entry = self.entries[name]
        count = prod(entry.info.shape)
        stretch = self.noise.roll(-(crc32(name.encode()) % PERIOD))
        tensor = stretch.repeat(-(-count // PERIOD))[:count].view(entry.info.shape)
        if entry.info.format == "F32":
            tensor = tensor.float() + entry.centre
        return tensor if entry.transform is None else entry.transform.write(tensor)

    def config(self) -> dict[str, Any]:
        """As `Container.config`."""
        return self.raw

    def close(self) -> None:
        """As `Container.close`."""
        self.entries = {}
