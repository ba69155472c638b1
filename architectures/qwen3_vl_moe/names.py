"""Qwen3-VL-MoE's names: stacked experts [E, k, n] on the hub, [E, n, k] in memory of transformers.

The FP8 files of the hub have separate experts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ostro import Container, ExpertNames, Pair
from ostro.architectures.llama import names as llama
from ostro.architectures.mixtral import names as mixtral
from ostro.architectures.qwen3_vl import projector
from ostro.architectures.qwen3_vl.names import names as hub_names
from ostro.architectures.qwen3_vl_moe.model import Config
from ostro.errors import CheckpointError

EXPERTS = "model.language_model.layers.{i}.mlp.experts"
EACH = "model.layers.{i}.mlp.experts.*"


@dataclass(frozen=True)
class Oriented:
    """Part `index` of `count` of an expert's outputs n, from a matrix [k, n] or [n, k].

    A matrix of k = n is [k, n], as on the hub.
    """

    k: int
    n: int
    index: int = 0
    count: int = 1
    packed: bool = field(default=False, init=False)

    def read(self, tensor: Tensor) -> Tensor:
        if tuple(tensor.shape) == (self.k, self.n):
            tensor = tensor.t()
        if tuple(tensor.shape) != (self.n, self.k):
            raise CheckpointError(
                f"an expert of shape {tuple(tensor.shape)}; expected {[self.k, self.n]} or "
                f"{[self.n, self.k]}"
            )
        return tensor.chunk(self.count)[self.index]

    def write(self, tensor: Tensor) -> Tensor:
        raise CheckpointError("a part of a tensor cannot be written without the others")


def names(config: Config) -> ExpertNames:
    """The names on the hub, and in the two GGUF files."""
    d, hidden = config.text.hidden_size, config.text.moe_intermediate_size
    stacks = (
        *(
            Pair(f"{EXPERTS}.gate_up_proj", f"{EACH}.{part}_proj.weight", transform)
            for i, part in enumerate(("gate", "up"))
            for transform in [Oriented(d, 2 * hidden, i, 2)]
        ),
        Pair(f"{EXPERTS}.down_proj", f"{EACH}.down_proj.weight", Oriented(hidden, d)),
        *(pair for pair in mixtral.STACKS if pair.theirs.startswith("blk.")),
    )
    gguf = (*projector.tower_names(config), mixtral.GATE, *llama.GGUF)
    hub = hub_names(config).hub
    return ExpertNames(hub=hub, gguf=gguf, experts=config.text.num_local_experts, stacks=stacks)


def gguf_config(container: Container) -> dict[str, Any]:
    """Qwen3-VL's config.json, with the numbers and the width of experts."""
    raw = projector.gguf_config(container)
    get = llama.under(container.metadata["general.architecture"], container.metadata)
    raw["text_config"] |= {
        "num_local_experts": get("expert_count"),
        "num_experts_per_tok": get("expert_used_count"),
        "moe_intermediate_size": get("expert_feed_forward_length"),
    }
    return raw
