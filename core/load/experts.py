"""Names of experts that are stacked in one tensor, as in transformers 5 and GGUF files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ostro.core.errors import CheckpointError
from ostro.core.load.names import Named, Names, Pair, Transform


@dataclass(frozen=True)
class RowPart:
    """One of `count` equal parts of a tensor's rows."""

    index: int
    count: int
    packed: bool = field(default=True, init=False)

    def read(self, tensor: Tensor) -> Tensor:
        if tensor.shape[0] % self.count:
            raise CheckpointError(
                f"{tensor.shape[0]} rows cannot be split into {self.count} equal parts"
            )
        return tensor.chunk(self.count)[self.index]

    def write(self, tensor: Tensor) -> Tensor:
        raise CheckpointError("a part of a tensor cannot be written without the others")


@dataclass(frozen=True)
class Expert:
    """The matrix of one of `count` stacked experts, followed by the transform `then`."""

    index: int
    count: int
    then: Transform | None

    @property
    def packed(self) -> bool:
        return self.then is None or self.then.packed

    def read(self, tensor: Tensor) -> Tensor:
        if tensor.dim() < 2 or tensor.shape[0] != self.count:
            raise CheckpointError(
                f"a stack of shape {tuple(tensor.shape)} does not contain {self.count} experts"
            )
        matrix = tensor[self.index]
        return matrix if self.then is None else self.then.read(matrix)

    def write(self, tensor: Tensor) -> Tensor:
        raise CheckpointError("an expert cannot be written without the others of its stack")


@dataclass(frozen=True, kw_only=True)
class ExpertNames(Names):
    """`Names` with stacked experts: pairs of one checkpoint tensor and several model tensors.

    Every pair of `stacks` that matches applies. If `ours` contains `*`, the pair maps to one tensor
    per expert, with its index in place of the `*`. Stacks that match `ignore` are skipped.
    """

    experts: int
    stacks: Sequence[Pair] = ()

    def read(self, names: Iterable[str], space: str = "hub") -> tuple[list[Named], list[str]]:
        named, others = [], []
        for name in names:
            if self.ignored(name):
                continue
            found = [(pair, ours) for pair in self.stacks if (ours := pair.match(name))]
            for pair, ours in found:
                if "*" not in ours:
                    named.append(Named(ours, name, pair.transform))
                    continue
                for e in range(self.experts):
                    expert = Expert(e, self.experts, pair.transform)
                    named.append(Named(ours.replace("*", str(e)), name, expert))
            if not found:
                others.append(name)
        rest, left = super().read(others, space)
        return named + rest, left
