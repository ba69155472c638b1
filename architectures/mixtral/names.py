"""Names of experts, each in tensors of its own or all of them stacked in one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ostro import Container, Names, Pair
from ostro.architectures.llama import names as llama
from ostro.architectures.mixtral.model import Config
from ostro.core.errors import CheckpointError
from ostro.core.load.names import Named, Transform

LAYER = "model.layers.{i}"
EACH = f"{LAYER}.mlp.experts.*"


@dataclass(frozen=True)
class Part:
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


OLD = f"{LAYER}.block_sparse_moe"
HUB = (
    Pair(f"{OLD}.gate", f"{LAYER}.mlp.gate"),
    Pair(f"{OLD}.experts.{{e}}.w1", f"{LAYER}.mlp.experts.{{e}}.gate_proj"),
    Pair(f"{OLD}.experts.{{e}}.w2", f"{LAYER}.mlp.experts.{{e}}.down_proj"),
    Pair(f"{OLD}.experts.{{e}}.w3", f"{LAYER}.mlp.experts.{{e}}.up_proj"),
)
"""As the hub has Mixtral. transformers 5 has the names on the right, its experts stacked."""

STACKS = (
    Pair(f"{LAYER}.mlp.experts.gate_up_proj", f"{EACH}.gate_proj.weight", Part(0, 2)),
    Pair(f"{LAYER}.mlp.experts.gate_up_proj", f"{EACH}.up_proj.weight", Part(1, 2)),
    Pair(f"{LAYER}.mlp.experts.down_proj", f"{EACH}.down_proj.weight"),
    Pair("blk.{i}.ffn_gate_exps", f"{EACH}.gate_proj"),
    Pair("blk.{i}.ffn_up_exps", f"{EACH}.up_proj"),
    Pair("blk.{i}.ffn_down_exps", f"{EACH}.down_proj"),
)
"""As transformers 5 has them in memory, and as GGUF files do."""

GATE = Pair("blk.{i}.ffn_gate_inp", f"{LAYER}.mlp.gate")


def names(config: Config) -> ExpertNames:
    """In GGUF files this family is llama, with its halves interleaved."""
    gguf = (GATE, *llama.names(config).gguf)
    return ExpertNames(hub=HUB, gguf=gguf, experts=config.num_local_experts, stacks=STACKS)


def gguf_config(container: Container) -> dict[str, Any]:
    """Llama's keys, and how many experts there are."""
    get = llama.under(container.metadata["general.architecture"], container.metadata)
    counts = {
        "num_local_experts": get("expert_count"),
        "num_experts_per_tok": get("expert_used_count"),
    }
    return llama.gguf_config(container) | counts
