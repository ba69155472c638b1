"""Names of experts that lie stacked in one tensor, as transformers 5 and GGUF files have them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ostro.core.errors import CheckpointError
from ostro.core.load.names import Named, Names, Pair, Transform


@dataclass(frozen=True)
class RowPart:
    """One of `many` parts that lie one after the other along the rows of a tensor."""

    index: int
    many: int

    @property
    def packed(self) -> bool:
        return True

    def read(self, tensor: Tensor) -> Tensor:
        if tensor.shape[0] % self.many:
            raise CheckpointError(f"{tensor.shape[0]} rows are not {self.many} parts of one size")
        return tensor.chunk(self.many)[self.index]

    def write(self, tensor: Tensor) -> Tensor:
        raise CheckpointError("a part of a tensor cannot be written without the others")


@dataclass(frozen=True)
class Expert:
    """The matrix of one of `many` experts out of a stack, then changed as its pair says."""

    index: int
    many: int
    then: Transform | None

    @property
    def packed(self) -> bool:
        return self.then is None or self.then.packed

    def read(self, tensor: Tensor) -> Tensor:
        if tensor.dim() < 2 or tensor.shape[0] != self.many:
            raise CheckpointError(
                f"a stack of shape {tuple(tensor.shape)} does not hold {self.many} experts"
            )
        mine = tensor[self.index]
        return mine if self.then is None else self.then.read(mine)

    def write(self, tensor: Tensor) -> Tensor:
        raise CheckpointError("an expert cannot be written without the others of its stack")


@dataclass(frozen=True, kw_only=True)
class ExpertNames(Names):
    """Names of which `stacks` are pairs of one tensor of theirs and several of ours: all pairs that
    match, and where ours has a `*`, one tensor for the number of each expert.
    """

    experts: int
    stacks: Sequence[Pair] = ()

    def read(self, names: Iterable[str], space: str = "hub") -> tuple[list[Named], list[str]]:
        named, others = [], []
        for name in names:
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
