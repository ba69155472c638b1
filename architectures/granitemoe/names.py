"""GraniteMoE's names: stacked experts on the hub and in GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostro import Container, ExpertNames, HeadRows, Pair, RowPart
from ostro.architectures.granite import names as granite
from ostro.architectures.llama import names as llama
from ostro.architectures.mixtral import names as mixtral

LAYER = "model.layers.{i}"
OLD, SHARED = f"{LAYER}.block_sparse_moe", f"{LAYER}.mlp.shared_mlp"
EACH = mixtral.EACH
HUB = (
    Pair(f"{OLD}.router.layer", f"{LAYER}.mlp.gate"),
    Pair(f"{OLD}.router", f"{LAYER}.mlp.gate"),
    Pair(f"{LAYER}.shared_mlp.output_linear", f"{SHARED}.down_proj"),
)
"""The names on the hub, the second in transformers 5."""

STACKS = (
    Pair(f"{OLD}.input_linear.weight", f"{EACH}.gate_proj.weight", RowPart(0, 2)),
    Pair(f"{OLD}.input_linear.weight", f"{EACH}.up_proj.weight", RowPart(1, 2)),
    Pair(f"{OLD}.output_linear.weight", f"{EACH}.down_proj.weight"),
    Pair(f"{OLD}.experts.gate_up_proj", f"{EACH}.gate_proj.weight", RowPart(0, 2)),
    Pair(f"{OLD}.experts.gate_up_proj", f"{EACH}.up_proj.weight", RowPart(1, 2)),
    Pair(f"{OLD}.experts.down_proj", f"{EACH}.down_proj.weight"),
    *mixtral.STACKS,
)
GGUF = (
    mixtral.GATE,
    *(Pair(f"blk.{{i}}.ffn_{p}_shexp", f"{SHARED}.{p}_proj") for p in ("gate", "up", "down")),
)


def names(config: Any) -> ExpertNames:
    """The names of GraniteMoE, and of Granite 4.0, whose config has the same fields.

    llama.cpp's converter interleaves the halves of each head of q and k, as in Llama's files.
    """
    n = config.shared_intermediate_size
    parts = tuple(
        Pair(f"{LAYER}.shared_mlp.input_linear", f"{SHARED}.{name}_proj", HeadRows(1, 2 * n, *rows))
        for name, rows in (("gate", (0, n)), ("up", (n, 2 * n)))
    )
    gguf = (*GGUF, *llama.names(config).gguf)
    experts = config.num_local_experts
    return ExpertNames(hub=(*HUB, *parts), gguf=gguf, experts=experts, stacks=STACKS)


def gguf_config(container: Container) -> dict[str, Any]:
    """Granite's keys, Mixtral's, and the width of the shared MLP."""
    width = container.metadata.get("granitemoe.expert_shared_feed_forward_length", 0)
    shared = {"shared_intermediate_size": width}
    return mixtral.gguf_config(container) | granite.gguf_config(container) | shared


def gguf_metadata(config: Any, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The width of the shared MLP is written only if there is one."""
    return {"expert_shared_feed_forward_length": config.shared_intermediate_size or None}
