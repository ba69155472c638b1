"""OLMo 2's and 3's names and keys in GGUF files, which are of one architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostro import Container, Names, Pair
from ostro.architectures.gemma2.names import windows
from ostro.architectures.llama import names as llama
from ostro.architectures.olmo2.model import Config

BEFORE = ("blk.{i}.attn_norm", "blk.{i}.ffn_norm")
GGUF = (
    Pair("blk.{i}.post_attention_norm", f"{llama.LAYER}.post_attention_layernorm"),
    Pair("blk.{i}.post_ffw_norm", f"{llama.LAYER}.post_feedforward_layernorm"),
    *(pair for pair in llama.GGUF if pair.theirs not in BEFORE),
)


def names(config: Config) -> Names:
    """llama.cpp's converter does not reorder the rows of q and k of this family."""
    return Names(gguf=GGUF)


def gguf_config(container: Container) -> dict[str, Any]:
    """Llama's keys, and the layers with a window, by default three of four."""
    raw = llama.gguf_config(container) | windows(container.metadata)
    layers = raw.get("num_hidden_layers")
    if raw["sliding_window"] and "layer_types" not in raw and isinstance(layers, int):
        kinds = ("sliding_attention",) * 3 + ("full_attention",)
        raw["layer_types"] = [kinds[i % 4] for i in range(layers)]
    return raw


def gguf_metadata(config: Config, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The layers with a window; OLMo 3 has no architecture of its own."""
    windows = [config.window(i) > 0 for i in range(config.num_hidden_layers)]
    pattern = {"attention.sliding_window_pattern": windows} if any(windows) else {}
    return {"general.architecture": "olmo2", **pattern}
