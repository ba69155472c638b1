"""Linear: the linear layer for all weight formats and adapters.

It has named output parts, one storage per part (or one fused storage if the formats agree) and
deltas. A quantizer provides the storage and an adapter adds a delta, independently of each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from ostro.core.errors import CheckpointError, InvalidTensor
from ostro.core.nn.storage import Storage
from ostro.core.ops import Target
from ostro.core.step import Step

Shard = Literal["colwise", "rowwise"] | None


class Delta(Protocol):
    """The change of a linear by an adapter: the operations of a storage, given the base's output.

    Each method returns the changed y; it may modify y in place. `step` maps each row to a mixture
    of adapters.
    """

    def matmul(self, x: Tensor, y: Tensor, step: Step) -> Tensor:
        """x [t, k], y [t, n] (all parts concatenated, without bias) -> [t, n]."""

    def matmul_t(self, x: Tensor, y: Tensor, step: Step) -> Tensor:
        """x [t, h, n/h], y [t, h, k] -> [t, h, k]: the transpose, A and B swap roles."""

    def matmul_h(self, x: Tensor, y: Tensor, step: Step) -> Tensor:
        """x [t, h, k], y [t, h, n/h] -> [t, h, n/h]: each head with its own rows of B."""

    def rows(self, ids: Tensor, y: Tensor, step: Step) -> Tensor:
        """ids [t], y [t, k] -> [t, k], for an embedding."""

    def grouped(self, x: Tensor, y: Tensor, expert_of_row: Tensor, step: Step) -> Tensor:
        """x [t, k], y [t, n] -> [t, n], for stacked experts."""


@dataclass(frozen=True)
class WeightSlot:
    """A weight or parameter that a checkpoint must fill.

    `kind` "storage" is a weight of `shape` read from all tensors whose names begin with `name`;
    "tensor" is a parameter read from the tensor `name`.
    """

    name: str
    kind: Literal["storage", "tensor"]
    shape: tuple[int, ...]
    module: Module
    part: str = ""
    expert: int | None = None


class Linear(Module):
    """y = x W^T + b for weights [n, k] whose n rows are one or several named parts.

    In checkpoint names, a part replaces the last component of the module's path: `self_attn.qkv`
    with parts q_proj, k_proj and v_proj reads `self_attn.q_proj.weight` and so on. `bias` may list
    the parts that have one. `shard` is the axis that tensor parallelism may split.
    """

    def __init__(
        self,
        n_in: int,
        n_out: int | Mapping[str, int],
        *,
        bias: bool | Collection[str] = False,
        shard: Shard = "colwise",
    ) -> None:
        super().__init__()
        self.n_in = n_in
        self.parts = dict(n_out) if isinstance(n_out, Mapping) else {"": n_out}
        self.n_out = sum(self.parts.values())
        self.shard = shard
        self.storages: dict[str, Storage] = {}
        self.fused: Storage | None = None
        self.deltas: list[Delta] = []
        self.checked = set[str]()  # operations of the storages whose results are right
        self.biased = frozenset(self.parts if bias is True else bias or ())
        self.bias = Parameter(torch.zeros(self.n_out), requires_grad=False) if bias else None

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """x [..., k] -> [..., n], the parts concatenated.

        Raises InvalidTensor if the width of x is not `n_in`.
        """
        if x.shape[-1] != self.n_in:
            raise InvalidTensor(f"expects inputs of width {self.n_in}, got {x.shape[-1]}")
        if self.fused is not None:
            y = self.fused.matmul(x)
        else:
            storages = list(self.storages.values())
            y = type(storages[0]).matmul_parts(storages, x)
        if "matmul" not in self.checked:
            self.check("matmul", y, (*x.shape[:-1], self.n_out), x.dtype)
        for delta in self.deltas:
            y = delta.matmul(x, y, step)
        return y if self.bias is None else y + self.bias

    def matmul_t(self, x: Tensor, step: Step) -> Tensor:
        """x [t, h, n/h] -> [t, h, k]: the transpose per head (absorbed latent attention)."""
        y = self.whole.matmul_t(x)
        if "matmul_t" not in self.checked:
            self.check("matmul_t", y, (*x.shape[:-1], self.n_in), x.dtype)
        for delta in self.deltas:
            y = delta.matmul_t(x, y, step)
        return y

    def matmul_h(self, x: Tensor, step: Step) -> Tensor:
        """x [t, h, k] -> [t, h, n/h]: each head with its own rows, without bias."""
        y = self.whole.matmul_h(x)
        if "matmul_h" not in self.checked:
            self.check("matmul_h", y, (*x.shape[:-1], self.n_out // x.shape[-2]), x.dtype)
        for delta in self.deltas:
            y = delta.matmul_h(x, y, step)
        return y

    def check(self, operation: str, y: Tensor, shape: Sequence[int], dtype: torch.dtype) -> None:
        """Check the first result of an operation of the storages. Raises InvalidResult."""
        self.active_storages[0].check(operation, y, shape, dtype)
        self.checked.add(operation)

    @property
    def weight_shape(self) -> tuple[int, int]:
        """Rows n and columns k of the weight that deltas change."""
        return self.n_out, self.n_in

    @property
    def whole(self) -> Storage:
        """The storage of a linear with one part, or of fused parts."""
        assert self.fused is not None, f"the parts of {self} are not fused"
        return self.fused

    def span(self, part: str) -> slice:
        """The slice of the output that belongs to a part."""
        return part_slice(self.parts, part)

    def slots(self, path: str) -> Iterator[WeightSlot]:
        parent = path.rpartition(".")[0]
        for part, size in self.parts.items():
            name = path if not part else f"{parent}.{part}" if parent else part
            yield WeightSlot(name, "storage", (size, self.n_in), self, part)
            if part in self.biased:
                yield WeightSlot(f"{name}.bias", "tensor", (size,), self, part)

    def fill(self, slot: WeightSlot, value: Storage | Tensor) -> None:
        """Set the storage or the bias of a slot."""
        if isinstance(value, Storage):
            self.fused = None
            self.storages[slot.part] = value
        elif self.bias is not None:
            self.bias.data[self.span(slot.part)] = value

    def finalize(self, target: Target) -> str:
        """Fuse the parts if their formats agree, finalize the storages, return kernel choices.

        Raises CheckpointError if a part has no weight.
        """
        if missing := [part for part in self.parts if part not in self.storages]:
            raise CheckpointError(f"found no weight for {', '.join(missing) or 'a linear'}")
        self.checked.clear()
        storages = [self.storages[part] for part in self.parts]
        self.fused = storages[0] if len(storages) == 1 else type(storages[0]).fuse(storages)
        if self.fused is not None:
            if len(storages) > 1:
                self.storages = {}
            return self.fused.finalize(target)
        reasons = [storage.finalize(target) for storage in storages]
        return "; ".join(dict.fromkeys(reasons))

    @property
    def active_storages(self) -> list[Storage]:
        """The storages in use: the fused one, or one per part."""
        return [self.fused] if self.fused is not None else list(self.storages.values())

    @property
    def nbytes(self) -> int:
        return sum(storage.nbytes for storage in self.active_storages)

    def extra_repr(self) -> str:
        return f"{self.n_in} -> {self.parts}"


def part_slice(parts: Mapping[str, int], part: str) -> slice:
    """The slice of a part in the concatenation of parts, given by their sizes."""
    start = 0
    for name, size in parts.items():
        if name == part:
            return slice(start, start + size)
        start += size
    raise KeyError(part)
