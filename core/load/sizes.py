"""Memory sizes of weights by format, computed before the weights are read.

The bits per weight of a format describe files. In memory, scales may be wider, kernels pad rows,
and a weight that is both multiplied and looked up may be stored twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

import torch

from ostro.core.load.describe import DTYPES, ModelOutline, target_of
from ostro.core.load.names import FLOATS
from ostro.core.load.quantize import FLOAT_FORMAT, Maker, QuantizationPlan
from ostro.core.nn import Embedding
from ostro.core.nn.linear import WeightSlot
from ostro.core.nn.storage import Storage
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import TensorInfo, resolve
from ostro.core.settings import Settings

ROWS = 64
"""Rows of a sample; a multiple of the rows that any kernel layout interleaves."""
FEW_ROWS = 512
"""Up to this many rows a weight is measured as it is: a layout of large weights may not fit it."""

WeightShape = tuple[int, bool, str]
"""What determines the bytes per row: columns, whether the weight is an embedding, and the float
format in the checkpoint.
"""


class Sizes:
    """Bytes of weights in memory, by format, after they are finalized for a device.

    For float weights, a sample of random rows is quantized and measured; no weight is read. Of
    weights that are quantized in the checkpoint, one of each format and shape is read.
    """

    def __init__(self, outline: ModelOutline, settings: Settings, plugins: PluginManager) -> None:
        self.outline, self.target = outline, target_of(outline.device, outline.dtype, settings)
        self.dense: Any = resolve(plugins.get("quantizers", "dense").storage)
        self.reader = outline.reader(plugins)
        self.by_slot = outline.arrange()[0]
        self.rows: dict[tuple[str, WeightShape], Sample] = {}
        self.few: dict[tuple[str, WeightShape, int], int] = {}
        self.quantized: dict[Any, int] = {}

    def rows_nbytes(self, maker: Maker | None, shape: WeightShape, rows: int = ROWS) -> int:
        """Bytes of contiguous rows in a format; `maker` None means floats."""
        if rows > FEW_ROWS:
            return self.sample(maker, shape).nbytes(rows)
        name = maker.format.name if maker else FLOAT_FORMAT
        if (name, shape, rows) not in self.few:
            self.few[name, shape, rows] = self.random(maker, shape, rows).nbytes
        return self.few[name, shape, rows]

    def sample(self, maker: Maker | None, shape: WeightShape) -> Sample:
        """The measured sample of a shape in a format, cached."""
        name = maker.format.name if maker else FLOAT_FORMAT
        if (name, shape) not in self.rows:
            batch, single = (self.random(maker, shape, count) for count in (ROWS, 1))
            self.rows[name, shape] = Sample(batch.nbytes, single.nbytes, batch.has_kernel)
        return self.rows[name, shape]

    def random(self, maker: Maker | None, shape: WeightShape, rows: int) -> Storage:
        """A finalized storage of random rows in a format."""
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(rows, shape[0], generator=generator)
        weight = weight.to(self.outline.device, DTYPES.get(shape[2].lower(), torch.float32))
        if maker is None:
            return self.finalized(self.dense(weight, self.outline.dtype), shape[1])
        return self.finalized(maker.make(weight, self.outline.dtype, None), shape[1])

    def finalized(self, storage: Storage, embedding: bool) -> Storage:
        storage.finalize(self.target, embedding=embedding)
        return storage

    def nbytes(self, parts: Sequence[WeightSlot], plan: QuantizationPlan | None) -> int:
        """Bytes of the parts of a module, or of one of its experts, in the formats of a plan.

        Float parts with the same format are stored contiguously.
        """
        if all(map(self.is_float, parts)):
            makers = {plan.choose(slot) if plan else None for slot in parts}
            if len(makers) == 1:
                rows = sum(prod(slot.shape[:-1]) for slot in parts)
                return self.rows_nbytes(makers.pop(), self.shape_of(parts[0]), rows)
        return sum(
            self.nbytes([slot], plan) if self.is_float(slot) else self.quantized_nbytes(slot)
            for slot in parts
        )

    def shape_of(self, slot: WeightSlot) -> WeightShape:
        """The shape of a float slot."""
        return slot.shape[-1], isinstance(slot.module, Embedding), self.infos(slot)["weight"].format

    def is_float(self, slot: WeightSlot) -> bool:
        """Whether a slot is stored in floats in the checkpoint."""
        infos = self.infos(slot)
        return infos.keys() == {"weight"} and infos["weight"].format in FLOATS

    def infos(self, slot: WeightSlot) -> dict[str, TensorInfo]:
        tensors = self.outline.container.tensors
        return {suffix: tensors[n.theirs] for suffix, n in self.by_slot.get(slot.name, {}).items()}

    def quantized_nbytes(self, slot: WeightSlot) -> int:
        """Bytes of a slot that is quantized in the checkpoint."""
        facts = ((suffix, i.format, i.shape) for suffix, i in self.infos(slot).items())
        kind = slot.shape, *sorted(facts)
        if kind not in self.quantized:
            storage = self.reader.storage(slot, self.by_slot[slot.name])
            embedding = isinstance(slot.module, Embedding)
            self.quantized[kind] = self.finalized(storage, embedding).nbytes
        return self.quantized[kind]


@dataclass(frozen=True)
class Sample:
    """Bytes of a batch of `ROWS` rows and of a single row in a format.

    A single row takes more than its share of the batch if the kernel's layout pads rows.
    """

    batch: int
    single: int
    has_kernel: bool

    def nbytes(self, rows: int) -> int:
        multiple = max(1, self.single * ROWS // self.batch)
        return ceil(-(-rows // multiple) * multiple * self.batch / ROWS)
