"""gpt-oss's names: stacked experts, in floats or MXFP4, with interleaved gate and up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ostro import Container, ExpertNames, Pair
from ostro.architectures.gpt_oss.model import Config
from ostro.architectures.llama import names as llama
from ostro.architectures.mixtral import names as mixtral
from ostro.errors import CheckpointError

LAYER = "model.layers.{i}"
EXPERTS = f"{LAYER}.mlp.experts"


@dataclass(frozen=True)
class Rows:
    """Every `step`-th row from `start` on, of a matrix or of its transpose."""

    start: int = 0
    step: int = 1
    transposed: bool = False

    @property
    def packed(self) -> bool:
        return not self.transposed

    def read(self, tensor: Tensor) -> Tensor:
        return (tensor.t() if self.transposed else tensor)[self.start :: self.step]

    def write(self, tensor: Tensor) -> Tensor:
        raise CheckpointError("a part of a tensor cannot be written without the others")


@dataclass(frozen=True)
class Columns(Rows):
    """Every `step`-th column."""

    def read(self, tensor: Tensor) -> Tensor:
        return tensor[:, self.start :: self.step]


GATE, UP = Rows(0, 2), Rows(1, 2)
STACKS = (
    Pair(f"{EXPERTS}.gate_up_proj_blocks", f"{EXPERTS}.*.gate_proj.blocks", GATE),
    Pair(f"{EXPERTS}.gate_up_proj_blocks", f"{EXPERTS}.*.up_proj.blocks", UP),
    Pair(f"{EXPERTS}.gate_up_proj_scales", f"{EXPERTS}.*.gate_proj.scales", GATE),
    Pair(f"{EXPERTS}.gate_up_proj_scales", f"{EXPERTS}.*.up_proj.scales", UP),
    Pair(f"{EXPERTS}.down_proj_blocks", f"{EXPERTS}.*.down_proj.blocks"),
    Pair(f"{EXPERTS}.down_proj_scales", f"{EXPERTS}.*.down_proj.scales"),
    Pair(f"{EXPERTS}.gate_up_proj", f"{EXPERTS}.*.gate_proj.weight", Rows(0, 2, True)),
    Pair(f"{EXPERTS}.gate_up_proj", f"{EXPERTS}.*.up_proj.weight", Rows(1, 2, True)),
    Pair(f"{EXPERTS}.down_proj", f"{EXPERTS}.*.down_proj.weight", Rows(transposed=True)),
    Pair(f"{EXPERTS}.gate_up_proj_bias", f"{EXPERTS}.gate_proj.bias", Columns(0, 2)),
    Pair(f"{EXPERTS}.gate_up_proj_bias", f"{EXPERTS}.up_proj.bias", Columns(1, 2)),
    Pair(f"{EXPERTS}.down_proj_bias", f"{EXPERTS}.down_proj.bias"),
    *(
        pair
        for part in ("gate", "up", "down")
        for pair in (
            Pair(f"blk.{{i}}.ffn_{part}_exps.weight", f"{EXPERTS}.*.{part}_proj.weight"),
            Pair(f"blk.{{i}}.ffn_{part}_exps.bias", f"{EXPERTS}.{part}_proj.bias"),
        )
    ),
)
HUB = (Pair(f"{LAYER}.mlp.router", f"{LAYER}.mlp.gate"),)
GGUF = (
    Pair("blk.{i}.attn_sinks.weight", f"{LAYER}.self_attn.sinks"),
    Pair("blk.{i}.post_attention_norm", f"{LAYER}.post_attention_layernorm"),
    mixtral.GATE,
    *llama.GGUF,
)


def names(config: Config) -> ExpertNames:
    """GGUF files have separate gate and up, and the rows of q and k are not reordered."""
    return ExpertNames(hub=HUB, gguf=GGUF, experts=config.num_local_experts, stacks=STACKS)


def gguf_config(container: Container) -> dict[str, Any]:
    """Mixtral's keys; YaRN's `truncate`, which no key stores, is false."""
    raw = mixtral.gguf_config(container)
    width = container.metadata.get("gpt-oss.expert_feed_forward_length")
    rules = raw["rope_parameters"] | {"truncate": False}
    return raw | {"intermediate_size": width, "rope_parameters": rules}


def gguf_metadata(config: Config, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The experts' width has a key of its own."""
    return {"expert_feed_forward_length": config.intermediate_size}
