"""Saving a model in other formats: weights are read, quantized and written one at a time."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from ostro.core.errors import CheckpointError, UsageError
from ostro.core.load.describe import ModelOutline, quantization
from ostro.core.load.model import tied_names
from ostro.core.load.names import Named, StorageTransform, Transform
from ostro.core.load.quantize import Maker, QuantizationPlan
from ostro.core.load.weights import FLOATS, WeightReader, arrange, refuse, slots
from ostro.core.nn.linear import Slot
from ostro.core.nn.storage import Storage
from ostro.core.plugins.manager import PluginManager

Told = Callable[[int, int], None]
"""Told (bytes done, bytes in all)."""


@dataclass(frozen=True)
class Saving:
    """What is to be written: the checkpoint of an outline, as its plan says, into `folder`.

    `name` says how it is quantized, for the names of files.
    """

    outline: ModelOutline
    folder: Path
    name: str
    plugins: PluginManager

    @property
    def plan(self) -> QuantizationPlan:
        assert self.outline.plan is not None, "nothing is to be quantized"
        return self.outline.plan

    @cached_property
    def reader(self) -> WeightReader:
        """Reads weights as storages, in the formats of the plan."""
        found = self.outline
        return WeightReader(
            found.container,
            self.plugins,
            quantization(found.raw_config),
            torch.device("cpu"),
            found.dtype,
            plan=self.plan,
        )

    @cached_property
    def arranged(self) -> tuple[dict[str, Slot], dict[str, dict[str, Named]], list[str]]:
        """The slots by name, the tensors of each that holds a weight, and those without a place.

        Raises CheckpointError where the checkpoint and the architecture do not agree.
        """
        found = self.outline
        named, left = found.names.read(found.container.tensors, found.space)
        wanted = list(slots(found.model))
        below, singles = arrange(named, wanted, left)
        tied = tied_names(found.model, found.names, found.space)
        missing = [s.name for s in wanted if s.name not in below and s.name not in singles]
        refuse(found.container, missing, [name for name in left if name not in tied])
        return {slot.name: slot for slot in wanted}, below, left

    def weights(self) -> Iterator[tuple[Slot, Callable[[], Storage]]]:
        """Every slot that holds a weight, and what reads it."""
        known, below, _ = self.arranged
        for name, mine in below.items():
            yield known[name], lambda slot=known[name], mine=mine: self.reader.storage(slot, mine)  # type: ignore[misc]

    def others(self) -> dict[str, Tensor]:
        """The checkpoint's tensors that are of no weight, by their own names, as they are."""
        _, below, left = self.arranged
        used = {named.theirs for mine in below.values() for named in mine.values()}
        container = self.outline.container
        return {n: container.read(n) for n in container.tensors if n not in used and n not in left}

    def plans(self, tensor: str) -> Sequence[tuple[Slot, Maker]]:
        """The slots that a float tensor of the checkpoint fills, with the formats they get."""
        return self._plans.get(tensor, ())

    @cached_property
    def _plans(self) -> Mapping[str, Sequence[tuple[Slot, Maker]]]:
        known, below, _ = self.arranged
        found: dict[str, list[tuple[Slot, Maker]]] = defaultdict(list)
        for name, mine in below.items():
            (*_, named), maker = mine.values(), self.plan.choose(known[name])
            info = self.outline.container.tensors[named.theirs]
            if len(mine) != 1 or info.format not in FLOATS or not is_quantizable(named.transform):
                continue
            if maker is not None:
                # the file may hold the transpose, whose rows have another length
                maker = self.plan.fit(replace(known[name], shape=info.shape), maker)
            if maker is not None:
                found[named.theirs].append((known[name], maker))
        return found


def is_quantizable(transform: Transform | None) -> bool:
    """Whether a float tensor with this transform can be read again once it is quantized."""
    return transform is None or transform.packed or isinstance(transform, StorageTransform)


@contextmanager
def whole(file: Path) -> Iterator[Path]:
    """A path to write to, which becomes `file` when all is there, and is gone where it is not.

    Raises CheckpointError where it cannot be written, as on a full disk.
    """
    path = file.with_name(f"{file.name}.part")
    try:
        yield path
        os.replace(path, file)
    except OSError as error:
        raise CheckpointError(
            f"{file.name} cannot be written: {error.strerror}; make room and run it again"
        ) from error
    finally:
        path.unlink(missing_ok=True)


def refuse_existing(path: Path) -> None:
    """Raise UsageError for what would be overwritten."""
    if path.exists():
        raise UsageError(f"{path} exists; remove it, or name another folder with -o")
