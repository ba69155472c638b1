"""How the hub has gpt-oss's experts: stacked, transposed, gate and up in turns."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from ostro import ExpertNames, Pair
from ostro.architectures.gpt_oss.model import Config
from ostro.core.errors import CheckpointError

EXPERTS = "model.layers.{i}.mlp.experts"


@dataclass(frozen=True)
class Columns:
    """Every `step`-th of the last dimension, from `start` on; a matrix is then transposed."""

    start: int = 0
    step: int = 1
    turn: bool = True
    packed: bool = field(default=False, init=False)

    def read(self, tensor: Tensor) -> Tensor:
        mine = tensor[..., self.start :: self.step]
        return mine.t() if self.turn else mine

    def write(self, tensor: Tensor) -> Tensor:
        raise CheckpointError("a part of a tensor cannot be written without the others")


STACKS = (
    Pair(f"{EXPERTS}.gate_up_proj", f"{EXPERTS}.*.gate_proj.weight", Columns(0, 2)),
    Pair(f"{EXPERTS}.gate_up_proj", f"{EXPERTS}.*.up_proj.weight", Columns(1, 2)),
    Pair(f"{EXPERTS}.down_proj", f"{EXPERTS}.*.down_proj.weight", Columns()),
    Pair(f"{EXPERTS}.gate_up_proj_bias", f"{EXPERTS}.gate_proj.bias", Columns(0, 2, turn=False)),
    Pair(f"{EXPERTS}.gate_up_proj_bias", f"{EXPERTS}.up_proj.bias", Columns(1, 2, turn=False)),
    Pair(f"{EXPERTS}.down_proj_bias", f"{EXPERTS}.down_proj.bias"),
)


def names(config: Config) -> ExpertNames:
    return ExpertNames(experts=config.num_local_experts, stacks=STACKS)
