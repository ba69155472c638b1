"""Token embedding and output head (LM head), which share one storage if they are tied."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor
from torch.nn import Module

from ostro.core.nn.linear import Delta, Linear, WeightSlot
from ostro.core.nn.storage import Storage
from ostro.core.ops import Target
from ostro.core.step import Step


class Embedding(Module):
    """A table of n rows of width d, indexed by token id."""

    def __init__(self, n: int, d: int) -> None:
        super().__init__()
        self.n, self.d = n, d
        self.storage: Storage | None = None
        self.deltas: list[Delta] = []
        self.checked = False  # whether the storage has returned a right result

    def forward(self, ids: Tensor, step: Step) -> Tensor:
        """ids [t] int64 -> [t, d]."""
        assert self.storage is not None, f"{self = } is not loaded"
        y = self.storage.rows(ids)
        if not self.checked:
            self.storage.check("rows", y, (*ids.shape, self.d), self.storage.dtype)
            self.checked = True
        for delta in self.deltas:
            y = delta.rows(ids, y, step)
        return y

    def slots(self, path: str) -> Iterator[WeightSlot]:
        yield WeightSlot(path, "storage", (self.n, self.d), self)

    def fill(self, slot: WeightSlot, value: Storage) -> None:
        self.storage = value

    def finalize(self, target: Target) -> str:
        assert self.storage is not None, f"{self = } is not loaded"
        self.checked = False
        return self.storage.finalize(target, embedding=True)

    @property
    def active_storages(self) -> list[Storage]:
        return [] if self.storage is None else [self.storage]

    @property
    def nbytes(self) -> int:
        return sum(storage.nbytes for storage in self.active_storages)

    def extra_repr(self) -> str:
        return f"{self.n}, {self.d}"


class Head(Linear):
    """Computes logits. `tied` is the embedding whose storage it shares; a bias is its own."""

    def __init__(
        self, d: int, n: int, *, tied: Embedding | None = None, bias: bool = False
    ) -> None:
        super().__init__(d, n, bias=bias)
        self.tied = (tied,) if tied is not None else ()  # a tuple: not a child of this module

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """x [T, d] -> [W, n]: the rows in `step.logits_indices`, or all."""
        if step.logits_indices is not None:
            x, step = x[step.logits_indices], step.rows(step.logits_indices)
        return super().forward(x, step)

    def slots(self, path: str) -> Iterator[WeightSlot]:
        own = super().slots(path)
        return (slot for slot in own if slot.kind == "tensor") if self.tied else own

    def finalize(self, target: Target) -> str:
        self.checked.clear()
        for embedding in self.tied:
            assert embedding.storage is not None, f"{embedding = } is not loaded"
            self.fused = embedding.storage
            # The embedding may be on another device than the head.
            target = replace(target, device=self.fused.device)
            return f"the embedding's: {self.fused.finalize(target, embedding=True)}"
        return super().finalize(target)

    @property
    def nbytes(self) -> int:
        return 0 if self.tied else super().nbytes
