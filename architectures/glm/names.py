"""GLM's names and keys: gate and up are one tensor, in GGUF files also q, k and v."""

from __future__ import annotations

from typing import Any

from ostro import Container, Names
from ostro.architectures.glm.model import Config
from ostro.architectures.llama import names as llama
from ostro.architectures.llama.names import LAYER, gate_up, qkv, row_parts

FUSED = ("blk.{i}.ffn_gate", "blk.{i}.ffn_up")


def names(config: Config) -> Names:
    """llama.cpp's converter does not reorder the rows of q and k of this family.

    Its files have separate tensors of q, k and v if they come from a checkpoint with this class,
    and one tensor if they come from one of the original class, ChatGLMModel.
    """
    return Names(
        hub=tuple(row_parts(f"{LAYER}.mlp.gate_up_proj", gate_up(config))),
        gguf=(
            *(pair for pair in llama.GGUF if pair.theirs not in FUSED),
            *row_parts("blk.{i}.ffn_up", gate_up(config)),
            *row_parts("blk.{i}.attn_qkv", qkv(config)),
        ),
    )


def gguf_config(container: Container) -> dict[str, Any]:
    """Llama's keys; without a number of rotated dimensions, whole heads are rotated."""
    raw = llama.gguf_config(container)
    raw["rope_parameters"].setdefault("partial_rotary_factor", 1.0)
    fused = "blk.0.attn_qkv.bias" in container.tensors
    return raw | {"attention_bias": fused or raw["attention_bias"]}
