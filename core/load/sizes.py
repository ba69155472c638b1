"""Sizes: what weights take in memory, by their format, before any of them is read.

Bits of a format are those of a file. In memory scales may be wider, kernels fill rows up, and what
is multiplied and looked up may be held twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

import torch

from ostro.core.load.describe import DTYPES, ModelOutline, quantization, target_of
from ostro.core.load.quantize import FLOAT, Maker, QuantizationPlan
from ostro.core.load.weights import FLOATS, WeightReader, arrange, slots
from ostro.core.nn import Embedding
from ostro.core.nn.linear import Slot
from ostro.core.nn.storage import Storage
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Settings, TensorInfo, resolve

ROWS = 32
"""Rows that are brought to a format to see what it takes: kernels hold no more together."""

Shape = tuple[int, bool, str]
"""What decides how many bytes a row takes: its length, whether it is an embedding's, and the floats
that the checkpoint holds it in.
"""


class Sizes:
    """Bytes that weights take in memory, by their format, once they are finalized for a device.

    Floats are brought to formats as a sample of random rows: no weight is read. Of what has few
    bits already one weight of each kind and shape is.
    """

    def __init__(self, found: ModelOutline, settings: Settings, plugins: PluginManager) -> None:
        self.found, self.settings = found, settings
        self.dense: Any = resolve(plugins.get("quantizers", "dense").storage)
        self.reader = WeightReader(
            found.container, plugins, quantization(found.raw_config), found.device, found.dtype
        )
        named, left = found.names.read(found.container.tensors, found.space)
        self.below = arrange(named, list(slots(found.model)), left)[0]
        self.rows: dict[tuple[str, Shape], Sample] = {}
        self.packed: dict[Any, int] = {}

    def of_rows(self, maker: Maker | None, shape: Shape, rows: int = ROWS) -> int:
        """Of rows that lie one after the other, in a format or as floats."""
        return self.sample(maker, shape).nbytes(rows)

    def sample(self, maker: Maker | None, shape: Shape) -> Sample:
        """What rows of a shape take, measured once for each format."""
        name = maker.format.name if maker else FLOAT
        if (name, shape) not in self.rows:
            many, one = (self.random(maker, shape, count) for count in (ROWS, 1))
            self.rows[name, shape] = Sample(many.nbytes, one.nbytes, many.has_kernel)
        return self.rows[name, shape]

    def random(self, maker: Maker | None, shape: Shape, rows: int) -> Storage:
        """Random rows in a format."""
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(rows, shape[0], generator=generator)
        weight = weight.to(self.found.device, DTYPES.get(shape[2].lower(), torch.float32))
        made: Storage = (
            self.dense(weight.to(self.found.dtype))
            if maker is None
            else maker.make(weight, self.found.dtype, None)
        )
        return self.finalized(made, shape[1])

    def finalized(self, storage: Storage, embedding: bool) -> Storage:
        storage.finalize(
            target_of(self.found.device, self.found.dtype, self.settings), embedding=embedding
        )
        return storage

    def of(self, parts: Sequence[Slot], plan: QuantizationPlan | None) -> int:
        """Of the parts of a module, or of one expert of it, brought to the formats that a plan has
        for those in floats: of one format they lie one after the other.
        """
        if all(map(self.is_float, parts)):
            makers = {plan.choose(slot) if plan else None for slot in parts}
            if len(makers) == 1:
                rows = sum(prod(slot.shape[:-1]) for slot in parts)
                return self.of_rows(makers.pop(), self.shape_of(parts[0]), rows)
        return sum(
            self.of([slot], plan) if self.is_float(slot) else self.of_packed(slot) for slot in parts
        )

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
        """Of a slot whose weight is quantized already."""
        facts = ((suffix, i.format, i.shape) for suffix, i in self.infos(slot).items())
        kind = slot.shape, *sorted(facts)
        if kind not in self.packed:
            storage = self.reader.storage(slot, self.below[slot.name])
            self.packed[kind] = self.finalized(storage, isinstance(slot.module, Embedding)).nbytes
        return self.packed[kind]


@dataclass(frozen=True)
class Sample:
    """Bytes that `ROWS` rows of one length take in a format, and those of a single row, which are
    more where a kernel holds rows together and fills up what is missing.
    """

    many: int
    one: int
    has_kernel: bool

    def nbytes(self, rows: int) -> int:
        together = max(1, self.one * ROWS // self.many)
        return ceil(-(-rows // together) * together * self.many / ROWS)
