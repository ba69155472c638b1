"""Qwen3-VL in two GGUF files: the config and the names of text and projector (mmproj)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ostro import Container, Names, Pair
from ostro.architectures.llama.names import GGUF as TEXT
from ostro.architectures.llava import projector as llava
from ostro.architectures.qwen2_5_vl.projector import BLOCK as BLOCK_2_5
from ostro.architectures.qwen2_5_vl.projector import sighted_config, sighted_keys, tower_pairs
from ostro.architectures.qwen3_vl import names as qwen3_vl
from ostro.architectures.qwen3_vl.config import Config, SightedConfig
from ostro.errors import ConfigError

BLOCK = {**BLOCK_2_5, "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"}
MERGER = {"norm": "norm", "fc1": "linear_fc1", "fc2": "linear_fc2"}
POSITIONS = "mmproj.v.position_embd.weight"


def gguf_config(container: Container) -> dict[str, Any]:
    """The config.json, with image preprocessing. Raises ConfigError for missing keys."""
    speaking = llava.stated(container, "vision.is_deepstack_layers", list)
    if POSITIONS not in container.tensors:
        raise ConfigError(
            f"{container.path.name}: its projector has no {POSITIONS}; convert it again"
        )
    return sighted_config(
        container,
        num_position_embeddings=container.tensors[POSITIONS].shape[0],
        deepstack_visual_indexes=[i for i, speaks in enumerate(speaking) if speaks],
    )


def tower_keys(config: SightedConfig, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the projector."""
    vision = config.vision
    return sighted_keys(
        config,
        raw,
        "qwen3vl_merger",
        image_size=vision.side * vision.patch_size,
        is_deepstack_layers=[i in vision.deepstack_visual_indexes for i in range(vision.depth)],
    )


def gguf_metadata(config: SightedConfig, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the projector, and the layers of the text that add features of images."""
    layers = len(config.vision.deepstack_visual_indexes)
    return {"n_deepstack_layers": layers, **tower_keys(config, raw)}


def tower_names(config: SightedConfig) -> tuple[Pair, ...]:
    """The names of the vision encoder in GGUF files, which number deepstack mergers by layer."""
    levels = (
        pair
        for i, layer in enumerate(config.vision.deepstack_visual_indexes)
        for pair in llava.pairs(MERGER, f"v.deepstack.{layer}", f"visual.deepstack_merger_list.{i}")
    )
    ends = (
        Pair(POSITIONS, "visual.pos_embed.weight"),
        Pair("mmproj.v.patch_embd.bias", "visual.patch_embed.proj.bias"),
    )
    layers = llava.pairs(BLOCK, "v.blk.{i}", "visual.blocks.{i}")
    return (*tower_pairs(config), *ends, *levels, *layers)


def names(config: Config) -> Names:
    """The names on the hub, and in the two GGUF files."""
    return replace(qwen3_vl.names(config), gguf=(*tower_names(config), *TEXT))
