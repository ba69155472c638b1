"""Qwen2-VL in two GGUF files: the config and the names of text and projector (mmproj)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ostro import Container, Names
from ostro.architectures.llama import names as llama
from ostro.architectures.llava import projector as llava
from ostro.architectures.qwen2_5_vl import model as qwen2_5_vl
from ostro.architectures.qwen2_5_vl import projector
from ostro.architectures.qwen2_vl.model import Config
from ostro.errors import ConfigError

BLOCK = {
    **{theirs: ours for theirs, ours in projector.BLOCK.items() if not theirs.startswith("ffn")},
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
UP = "mmproj.v.blk.0.ffn_up.weight"


def gguf_config(container: Container) -> dict[str, Any]:
    """The config.json, with image preprocessing.

    The width of the feed-forward follows from a tensor, since its key holds another number.
    """
    raw = projector.sighted_config(container)
    vision, up = raw["vision_config"], container.tensors.get(UP)
    width = vision["hidden_size"]
    if up is None or max(up.shape) % width:
        raise ConfigError(
            f"{container.path.name}: its projector has no {UP} with a multiple of {width} rows; "
            "convert it again"
        )
    vision |= {
        "embed_dim": width,
        "hidden_size": vision["out_hidden_size"],
        "mlp_ratio": max(up.shape) // width,
    }
    return raw


def gguf_metadata(config: Config, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the projector."""
    return projector.sighted_keys(config, raw, "qwen2vl_merger")


def names(config: Config) -> Names:
    """The names on the hub, and in the two GGUF files."""
    layers = llava.pairs(BLOCK, "v.blk.{i}", "visual.blocks.{i}")
    gguf = (*projector.tower_pairs(config), *layers, *llama.GGUF)
    return replace(qwen2_5_vl.names(config), gguf=gguf)
