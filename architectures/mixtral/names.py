"""The names of experts, in separate tensors or stacked in one."""

from __future__ import annotations

from typing import Any

from ostro import Container, ExpertNames, Pair, RowPart
from ostro.architectures.llama import names as llama
from ostro.architectures.mixtral.model import Config

LAYER = "model.layers.{i}"
EACH = f"{LAYER}.mlp.experts.*"


OLD = f"{LAYER}.block_sparse_moe"
HUB = (
    Pair(f"{OLD}.gate", f"{LAYER}.mlp.gate"),
    Pair(f"{OLD}.experts.{{e}}.w1", f"{LAYER}.mlp.experts.{{e}}.gate_proj"),
    Pair(f"{OLD}.experts.{{e}}.w2", f"{LAYER}.mlp.experts.{{e}}.down_proj"),
    Pair(f"{OLD}.experts.{{e}}.w3", f"{LAYER}.mlp.experts.{{e}}.up_proj"),
    Pair(f"{OLD}.experts", f"{LAYER}.mlp.experts"),
)
"""Mixtral's names on the hub, the last in UQFF. transformers 5 has the names on the right, with
stacked experts.
"""

STACKS = (
    Pair(f"{LAYER}.mlp.experts.gate_up_proj", f"{EACH}.gate_proj.weight", RowPart(0, 2)),
    Pair(f"{LAYER}.mlp.experts.gate_up_proj", f"{EACH}.up_proj.weight", RowPart(1, 2)),
    Pair(f"{LAYER}.mlp.experts.down_proj", f"{EACH}.down_proj.weight"),
    Pair("blk.{i}.ffn_gate_exps", f"{EACH}.gate_proj"),
    Pair("blk.{i}.ffn_up_exps", f"{EACH}.up_proj"),
    Pair("blk.{i}.ffn_down_exps", f"{EACH}.down_proj"),
    Pair("blk.{i}.ffn_gate_up_exps", f"{EACH}.gate_proj", RowPart(0, 2)),
    Pair("blk.{i}.ffn_gate_up_exps", f"{EACH}.up_proj", RowPart(1, 2)),
)
"""The names in memory of transformers 5, and in GGUF files, with separate or fused gate and up."""

GATE = Pair("blk.{i}.ffn_gate_inp", f"{LAYER}.mlp.gate")


def names(config: Config) -> ExpertNames:
    """In GGUF files this family is "llama", with interleaved rows of q and k."""
    gguf = (GATE, *llama.names(config).gguf)
    return ExpertNames(hub=HUB, gguf=gguf, experts=config.num_local_experts, stacks=STACKS)


def gguf_config(container: Container) -> dict[str, Any]:
    """Llama's keys, and the numbers of experts."""
    get = llama.under(container.metadata["general.architecture"], container.metadata)
    counts = {
        "num_local_experts": get("expert_count"),
        "num_experts_per_tok": get("expert_used_count"),
    }
    return llama.gguf_config(container) | counts
