"""Save a model in another format: weights are read, quantized and written one at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ostro.core.load.describe import ModelOutline
from ostro.core.load.heads import tied_names
from ostro.core.load.names import FLOATS, Named, StorageTransform, Transform
from ostro.core.load.quantize import Maker, QuantizationPlan
from ostro.core.load.weights import WeightReader, refuse, weight_slots
from ostro.core.nn.linear import WeightSlot
from ostro.core.nn.storage import Storage
from ostro.core.plugins.manager import PluginManager

SavingProgress = Callable[[int, int], None]
"""Called with (bytes done, total bytes) while weights are written."""


@dataclass(frozen=True)
class Saving:
    """A save request: write the checkpoint of an outline, quantized by its plan, into `folder`.

    `name` is the name of the quantization, for file names; "" without one. `dtype` is that of
    weights that are not quantized, None for the checkpoint's. The writer adds lines about what it
    wrote to `report`. `formats` are those of tensors that the container reads as floats although
    the checkpoint holds them quantized, by name.
    """

    outline: ModelOutline
    folder: Path
    name: str
    plugins: PluginManager
    dtype: torch.dtype | None = None
    report: list[str] = field(default_factory=list)
    formats: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def plan(self) -> QuantizationPlan:
        """The formats of all weights; no format without a plan."""
        return self.outline.plan or QuantizationPlan({}, None)

    @cached_property
    def reader(self) -> WeightReader:
        """Reader of weights as storages, in the formats of the plan."""
        return self.outline.reader(self.plugins, device=torch.device("cpu"), plan=self.plan)

    @cached_property
    def arranged(self) -> tuple[dict[str, WeightSlot], dict[str, dict[str, Named]], list[str]]:
        """Slots by name, the checkpoint tensors of each weight slot, and tensors without a slot.

        Raises CheckpointError if the checkpoint does not match the architecture.
        """
        found = self.outline
        by_slot, singles, left = found.arrange()
        known = {slot.name: slot for slot in weight_slots(found.model)}
        tied = tied_names(found.model, found.names, found.space)
        filled, unused = by_slot.keys() | singles.keys(), [n for n in left if n not in tied]
        refuse(found.container, known.values(), filled, unused)
        return known, by_slot, left

    def weights(self) -> Iterator[tuple[WeightSlot, Callable[[], Storage]]]:
        """Every weight slot, with a function that reads its storage."""
        known, by_slot, _ = self.arranged
        for name, tensors in by_slot.items():
            yield known[name], partial(self.reader.storage, known[name], tensors)

    def other_tensors(self) -> dict[str, Tensor]:
        """The checkpoint's tensors that belong to no weight slot, unchanged, by original name."""
        _, by_slot, left = self.arranged
        used = {named.theirs for tensors in by_slot.values() for named in tensors.values()}
        container = self.outline.container
        return {n: container.read(n) for n in container.tensors if n not in used and n not in left}

    def plans(self, tensor: str) -> Sequence[tuple[WeightSlot, Maker]]:
        """The slots that a float tensor of the checkpoint fills, with the formats they get."""
        return self._plans.get(tensor, ())

    @cached_property
    def _plans(self) -> Mapping[str, Sequence[tuple[WeightSlot, Maker]]]:
        known, by_slot, _ = self.arranged
        found: dict[str, list[tuple[WeightSlot, Maker]]] = defaultdict(list)
        for name, tensors in by_slot.items():
            (*_, named), maker = tensors.values(), self.plan.choose(known[name])
            info = self.outline.container.tensors[named.theirs]
            is_float = info.format in FLOATS and is_quantizable(named.transform)
            if len(tensors) != 1 or not is_float:
                continue
            if maker is not None:
                # The file may hold the transpose, whose rows have another length.
                maker = self.plan.fit(replace(known[name], shape=info.shape), maker)
            if maker is not None:
                found[named.theirs].append((known[name], maker))
        return found


def is_quantizable(transform: Transform | None) -> bool:
    """Whether a float tensor with this transform can be read again once it is quantized."""
    return transform is None or transform.packed or isinstance(transform, StorageTransform)


class ConfigWriter(Protocol):
    """`Architecture.gguf_metadata`: keys of a GGUF file for a config; None omits a key."""

    def __call__(self, config: Any, raw: Mapping[str, Any], /) -> Mapping[str, Any]: ...


class CheckpointWriter(Protocol):
    """`Checkpoint.write`: writes a model and returns its path.

    `progress` is called with the bytes done and the bytes in all.
    """

    def __call__(self, saving: Saving, progress: Callable[[int, int], None], /) -> Path: ...
