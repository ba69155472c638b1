"""Quantize a model whose weights are quantized already: its checkpoint, read as floats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ostro.core.errors import UsageError
from ostro.core.load.container import Container
from ostro.core.load.names import FLOATS
from ostro.core.load.weights import weight_slots
from ostro.core.nn import Router
from ostro.core.nn.storage import Stored
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import TensorInfo, resolve

if TYPE_CHECKING:
    from ostro.core.load.describe import ModelOutline


def quantized_formats(found: ModelOutline) -> Counter[str]:
    """The formats of the tensors that hold quantized weights of linears, with their numbers.

    Weights that a rule of --topology leaves as they are do not count.
    """
    by_slot, tensors = found.arrange()[0], found.container.tensors
    counted: dict[str, str] = {}
    for slot in weight_slots(found.model):
        if slot.kind != "storage" or isinstance(slot.module, Router):
            continue
        named = by_slot.get(slot.name, {}).values()
        infos = [tensors[item.theirs] for item in named]
        quantized = len(infos) > 1 or any(info.format not in FLOATS for info in infos)
        plan = found.plan
        if quantized and plan and (plan.planner is not None or plan.choose(slot) is not None):
            largest = max(infos, key=lambda info: info.nbytes)
            counted[largest.name] = largest.format
    return Counter(counted.values())


def dequantized(found: ModelOutline, plugins: PluginManager) -> ModelOutline:
    """The outline of a GGUF file with all weights as floats.

    Raises UsageError for another container: its weights consist of several tensors.
    """
    if found.space != "gguf":
        raise UsageError(
            f"--allow-requantize: {found.container.path.name} is not a GGUF file; write it as one "
            "without --quant first"
        )
    return replace(found, container=DequantizedContainer(found.container, plugins))


class DequantizedContainer:
    """A `Container` whose quantized tensors are read as float32."""

    def __init__(self, container: Container, plugins: PluginManager) -> None:
        self.container, self.plugins = container, plugins
        self.tensors: dict[str, TensorInfo] = {
            name: info if info.format in FLOATS else replace(info, **float_format(info))
            for name, info in container.tensors.items()
        }

    @property
    def formats(self) -> dict[str, str]:
        """The formats of the quantized tensors, by name."""
        tensors = self.container.tensors.items()
        return {name: info.format for name, info in tensors if info.format not in FLOATS}

    @property
    def path(self) -> Path:
        return self.container.path

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.container.metadata

    def read(self, name: str) -> Tensor:
        """As `Container.read`, in float32 for a quantized tensor."""
        tensor, info = self.container.read(name), self.container.tensors[name]
        if info.format in FLOATS:
            return tensor
        infos = {"weight": info}
        record = self.plugins.claimant("quantizers", lambda q: q.claims(infos, {}), name)
        assert record is not None, f"no format reads {name}, which the file's reader accepted"
        rows = (prod(info.shape[:-1]), info.shape[-1])
        stored = Stored(
            tensors={"weight": tensor.reshape(rows[0], -1)},
            infos={"weight": replace(info, shape=rows)},
            shape=rows,
            device=torch.device("cpu"),
            dtype=torch.float32,
        )
        weight: Tensor = resolve(record.storage).read(stored).dequantize()
        return weight.view(info.shape)

    def config(self) -> dict[str, Any] | None:
        """As `Container.config`."""
        return self.container.config()

    def close(self) -> None:
        """As `Container.close`."""
        self.container.close()


def float_format(info: TensorInfo) -> dict[str, Any]:
    return {"format": "F32", "nbytes": 4 * prod(info.shape)}
