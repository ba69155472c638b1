"""Cells: what each format would make of each weight, measured on rows of the weight itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod
from typing import Any

import torch
from torch import Tensor

from ostro.core.load.model import DTYPES, Outline, quantization
from ostro.core.load.quantize import FLOAT, Maker, Plan, means
from ostro.core.load.weights import FLOATS, Reader, arrange, slots
from ostro.core.nn import Embedding, Linear, Router
from ostro.core.nn.experts import Stack
from ostro.core.nn.linear import Slot
from ostro.core.nn.packed import Packed
from ostro.core.nn.storage import Storage
from ostro.core.plugins import PluginManager
from ostro.core.records import Settings, TensorInfo, resolve

ROWS, EXPERTS = 32, 4
"""Rows of a weight that are quantized to see what a format does to it, and experts that they are
of: proportions between formats hardly differ from row to row."""

PILOTS = 3
"""Weights of each length of rows that every format is tried on. Those formats are left out there
that none of them is the better for."""

Shape = tuple[int, bool, str]
"""What decides how many bytes a row takes: its length, whether it is an embedding's, and the floats
that the checkpoint holds it in.
"""


@dataclass(frozen=True, eq=False)
class Weight:
    """A weight that gets one format: a part of a linear, of all experts where it has several."""

    path: str
    slots: tuple[Slot, ...]
    shape: Shape

    @property
    def rows(self) -> int:
        return sum(prod(slot.shape[:-1]) for slot in self.slots)

    @property
    def count(self) -> int:
        return self.rows * self.shape[0]


class Sizes:
    """Bytes that weights take in memory, by their format, once they are settled on a device.

    Floats are brought to formats as a sample of random rows: no weight is read. Of what has few
    bits already one weight of each kind and shape is.
    """

    def __init__(self, found: Outline, settings: Settings, plugins: PluginManager) -> None:
        self.found, self.settings = found, settings
        self.dense: Any = resolve(plugins.get("quantizers", "dense").storage)
        self.reader = Reader(
            found.container, plugins, quantization(found.raw_config), found.device, found.dtype
        )
        named, left = found.names.read(found.container.tensors, found.space)
        self.below = arrange(named, list(slots(found.model)), left)[0]
        self.rows: dict[tuple[str, Shape], Sample] = {}
        self.packed: dict[Any, int] = {}
        self.fast: dict[str, bool] = {}

    def of_rows(self, maker: Maker | None, shape: Shape, rows: int = ROWS) -> int:
        """Of rows that lie one after the other, in a format or as floats."""
        name = maker.format.name if maker else FLOAT
        if (name, shape) not in self.rows:
            many, one = (self.sample(maker, shape, count) for count in (ROWS, 1))
            self.rows[name, shape] = Sample(many.nbytes, one.nbytes)
            self.fast[name] = has_kernel(many)
        return self.rows[name, shape].nbytes(rows)

    def sample(self, maker: Maker | None, shape: Shape, rows: int) -> Storage:
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(rows, shape[0], generator=generator)
        weight = weight.to(self.found.device, DTYPES.get(shape[2].lower(), torch.float32))
        made: Storage = (
            self.dense(weight.to(self.found.dtype))
            if maker is None
            else maker.make(weight, self.found.dtype, None)
        )
        return self.settled(made, shape[1])

    def settled(self, storage: Storage, rows: bool) -> Storage:
        storage.settle(self.settings.deterministic, rows, exact=self.settings.exact)
        return storage

    def of(self, parts: Sequence[Slot], plan: Plan | None) -> int:
        """Of the parts of a module, or of one expert of it, brought to the formats that a plan has
        for those in floats: of one format they lie one after the other.
        """
        if not all(map(self.is_float, parts)):
            return sum(self.of_alone(slot, plan) for slot in parts)
        makers = {plan.choose(slot) if plan else None for slot in parts}
        if len(makers) > 1:
            return sum(self.of_alone(slot, plan) for slot in parts)
        rows = sum(prod(slot.shape[:-1]) for slot in parts)
        return self.of_rows(makers.pop(), self.shape_of(parts[0]), rows)

    def of_alone(self, slot: Slot, plan: Plan | None) -> int:
        """Of a slot by itself."""
        return self.of([slot], plan) if self.is_float(slot) else self.of_packed(slot)

    def shape_of(self, slot: Slot) -> Shape:
        """Of a slot in floats."""
        return slot.shape[-1], isinstance(slot.module, Embedding), self.infos(slot)["weight"].format

    def is_float(self, slot: Slot) -> bool:
        """Whether the checkpoint holds a slot in floats."""
        infos = self.infos(slot)
        return infos.keys() == {"weight"} and infos["weight"].format in FLOATS

    def infos(self, slot: Slot) -> dict[str, TensorInfo]:
        tensors = self.found.container.tensors
        return {suffix: tensors[n.theirs] for suffix, n in self.below.get(slot.name, {}).items()}

    def of_packed(self, slot: Slot) -> int:
        """Of a slot that has few bits already."""
        facts = ((suffix, i.format, i.shape) for suffix, i in self.infos(slot).items())
        kind = slot.shape, *sorted(facts)
        if kind not in self.packed:
            storage = self.reader.storage(slot, self.below[slot.name])
            self.packed[kind] = self.settled(storage, isinstance(slot.module, Embedding)).nbytes
        return self.packed[kind]


@dataclass(frozen=True)
class Sample:
    """Bytes that `ROWS` rows of one length take in a format, and those of a single row, which are
    more where a kernel holds rows together and fills up what is missing.
    """

    many: int
    one: int

    def nbytes(self, rows: int) -> int:
        together = max(1, self.one * ROWS // self.many)
        return ceil(-(-rows // together) * together * self.many / ROWS)


def has_kernel(storage: Storage) -> bool:
    """Whether a settled storage multiplies by a kernel of its own, and not by plain torch."""
    kernel = storage.times.kernel if isinstance(storage, Packed) else None
    return kernel is not None and not kernel.__module__.endswith(".naive")


class Cells:
    """The weights of a checkpoint that a plan leaves to be chosen for, and what formats make of
    them: bytes, and errors weighed by how large the inputs of each column are.
    """

    def __init__(
        self,
        found: Outline,
        plan: Plan,
        sizes: Sizes,
    ) -> None:
        self.found, self.plan, self.sizes = found, plan, sizes
        self.weights = list(self.find())
        self.makers: Mapping[Shape, Sequence[Maker]] = self.choose()

    def find(self) -> Iterator[Weight]:
        """The float weights of linears, embeddings and experts that no rule of the plan names."""
        for path, module in self.found.model.named_modules():
            parts: dict[str, list[Slot]] = {}
            for slot in places(path, module):
                if self.is_open(slot):
                    parts.setdefault(slot.part, []).append(slot)
            for mine in parts.values():
                yield Weight(path, tuple(mine), self.sizes.shape_of(mine[0]))

    def is_open(self, slot: Slot) -> bool:
        """Whether a slot's format is to be chosen."""
        named = any(means(pattern, slot) for pattern, _ in self.plan.named)
        return self.sizes.is_float(slot) and not named

    def choose(self) -> dict[Shape, list[Maker]]:
        """The formats worth trying for each length of rows: those with kernels, if there are any,
        whose errors no smaller one beats in all pilots.
        """
        found = {}
        for shape in dict.fromkeys(weight.shape for weight in self.weights):
            fits = [m for m in self.plan.known.values() if shape[0] % m.format.block == 0]
            for maker in fits:
                self.sizes.of_rows(maker, shape)
            fast = [m for m in fits if self.sizes.fast[m.format.name]] or fits
            mine = [weight for weight in self.weights if weight.shape == shape]
            pilots = mine[:: max(1, len(mine) // PILOTS)][:PILOTS]
            best = {name for pilot in pilots for name in self.unbeaten(pilot, fast)}
            found[shape] = [maker for maker in fast if maker.format.name in best]
        return found

    def unbeaten(self, weight: Weight, among: Sequence[Maker]) -> Iterator[str]:
        """The formats of a weight that are better than all that take no more bytes."""
        errors = self.errors(weight, among)
        size = {m.format.name: self.sizes.of_rows(m, weight.shape) for m in among}
        least = float("inf")
        for name in sorted(errors, key=lambda name: (size[name], errors[name])):
            if errors[name] < least:
                least = errors[name]
                yield name

    def energy(self, weight: Weight) -> float:
        """The sum of importance_j W_j^2 over the same rows."""
        total = 0.0
        for rows, importance in self.samples(weight):
            square = rows.float().square()
            total += float((square if importance is None else square * importance).sum())
        return total

    @torch.inference_mode()
    def errors(self, weight: Weight, among: Sequence[Maker]) -> dict[str, float]:
        """The sum over rows of a weight of sum_j importance_j (W_j - W'_j)^2, by format."""
        found = dict.fromkeys((maker.format.name for maker in among), 0.0)
        for rows, importance in self.samples(weight):
            weighs = torch.ones_like(rows[0]) if importance is None else importance
            for maker in among:
                made = maker.make(rows, self.found.dtype, importance).dequantize()
                off = (made.float() - rows.float()).square() @ weighs
                found[maker.format.name] += float(off.sum())
        return found

    @cached_property
    def fixed(self) -> int:
        """Bytes of all weights that are not chosen for: routers, what rules name, what has few bits
        already.
        """
        mine = {slot.name for weight in self.weights for slot in weight.slots}
        rest = [s for s in slots(self.found.model) if s.kind == "storage" and s.name not in mine]
        return sum(self.sizes.of([slot], self.plan) for slot in rest)

    def nbytes(self, weight: Weight, maker: Maker | None) -> int:
        """Bytes of a weight in a format, or as floats."""
        rows = prod(weight.slots[0].shape[:-1])
        return len(weight.slots) * self.sizes.of_rows(maker, weight.shape, rows)

    def samples(self, weight: Weight) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Rows [r, k] of a weight, spread evenly, with the importance of their columns."""
        some = spread(len(weight.slots), EXPERTS)
        for i in some:
            slot = weight.slots[i]
            named, info = self.sizes.below[slot.name]["weight"], self.sizes.infos(slot)["weight"]
            whole = self.sizes.reader.tensor(named, info)
            rows = whole[spread(len(whole), ROWS // len(some))].to(self.found.device)
            importance = self.plan.importance.get(slot.name)
            yield rows, None if importance is None else importance.to(rows.device)


def places(path: str, module: Any) -> Iterator[Slot]:
    """The slots of a module for weights that may be quantized."""
    if isinstance(module, Linear | Embedding | Stack) and not isinstance(module, Router):
        yield from (slot for slot in module.slots(path) if slot.kind == "storage")


def spread(count: int, some: int) -> list[int]:
    """Indices, at most so many, spread evenly over all."""
    some = max(1, min(some, count))
    return [i * count // some for i in range(some)]
