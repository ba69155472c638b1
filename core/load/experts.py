"""Names of experts that are stacked in one tensor, as in transformers 5 and GGUF files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ostro.core.errors import CheckpointError
from ostro.core.load.names import Named, Names, Pair, Transform, compiled


@dataclass(frozen=True)
class RowPart:
    """One of `count` equal parts of a tensor's rows. `write` fills the other rows with zeros."""

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
        whole = tensor.new_zeros(self.count, *tensor.shape)
        whole[self.index] = tensor
        return whole.flatten(0, 1)


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

    def write(self, name: str, space: str = "hub") -> Named:
        """As `Names.write`; in a GGUF file, an expert's matrix is a part of a stack."""
        for pair in self.stacks if space == "gguf" else ():
            each = Pair(pair.theirs, pair.ours.replace("*", "{expert}"))
            theirs = each.match(name, write=True) if pair.theirs.startswith("blk.") else None
            if theirs is not None:
                found = compiled(each.ours).fullmatch(name)
                index = found and found.groupdict().get("expert")
                expert = Expert(int(index), self.experts, pair.transform) if index else None
                return Named(name, theirs, expert or pair.transform)
        return super().write(name, space)

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
