"""GLM-4's names and keys: gate and up are one tensor."""

from __future__ import annotations

from typing import Any

from ostro import Container, Names, Pair
from ostro.architectures.glm import names as glm
from ostro.architectures.glm.model import Config
from ostro.architectures.llama import names as llama
from ostro.architectures.llama.names import LAYER, gate_up, row_parts
from ostro.errors import ConfigError


def names(config: Config) -> Names:
    """llama.cpp's converter does not reorder the rows of q and k of this family."""
    return Names(
        hub=tuple(row_parts(f"{LAYER}.mlp.gate_up_proj", gate_up(config))),
        gguf=(
            *(pair for pair in llama.GGUF if pair.theirs not in glm.FUSED),
            *row_parts("blk.{i}.ffn_up", gate_up(config)),
            Pair("blk.{i}.post_attention_norm", f"{LAYER}.post_self_attn_layernorm"),
            Pair("blk.{i}.post_ffw_norm", f"{LAYER}.post_mlp_layernorm"),
        ),
    )


def gguf_config(container: Container) -> dict[str, Any]:
    """GLM-4-9b's keys. Raises ConfigError for the text part of GLM-4V, whose rows are reordered."""
    if "glm4.rope.dimension_sections" in container.metadata:
        raise ConfigError(
            f"{container.path.name}: glm4.rope.dimension_sections (GLM-4V) is not implemented"
        )
    return glm.gguf_config(container)
