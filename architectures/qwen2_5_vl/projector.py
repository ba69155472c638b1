"""Qwen2.5-VL in two GGUF files: the config and the names of text and projector (mmproj)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ostro import Container, Names, Pair
from ostro.architectures.llama import names as llama
from ostro.architectures.llava import projector as llava
from ostro.architectures.qwen2_5_vl import model as qwen2_5_vl
from ostro.architectures.qwen2_5_vl.config import Config, SightedConfig

BLOCK = {
    "ln1": "norm1",
    "attn_qkv": "attn.qkv",
    "attn_out": "attn.proj",
    "ln2": "norm2",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
WINDOW = 112
"""The side of a window in pixels, which no key stores; all published models have this value."""

LIMITS = 8, 4096
"""The default limits of an image in rows."""


def gguf_config(container: Container) -> dict[str, Any]:
    """The config.json, with image preprocessing; full attention is in every n-th layer."""
    depth = llava.stated(container, "vision.block_count")
    pattern = llava.stated(container, "vision.n_wa_pattern")
    more = {
        "window_size": WINDOW,
        "fullatt_block_indexes": list(range(pattern - 1, depth, pattern)),
    }
    return sighted_config(container, **more)


def sighted_config(container: Container, **tower: Any) -> dict[str, Any]:
    """The config of the Qwen-VL families; `tower` are further fields of the vision config."""
    metadata, text = container.metadata, llama.gguf_config(container)
    sections = metadata.get(f"{metadata['general.architecture']}.rope.dimension_sections")
    if sections is not None:
        text["rope_parameters"]["mrope_section"] = [int(size) for size in sections][:3]
    merge = 2
    if "clip.vision.spatial_merge_size" in metadata:
        merge = llava.stated(container, "vision.spatial_merge_size")
    patch = llava.stated(container, "vision.patch_size")
    sides = zip(("min", "max"), LIMITS, strict=True)
    limits = {
        f"{side}_pixels": metadata.get(f"clip.vision.image_{side}_pixels", n * (merge * patch) ** 2)
        for side, n in sides
    }
    vision = {
        "depth": llava.stated(container, "vision.block_count"),
        "hidden_size": llava.stated(container, "vision.embedding_length"),
        "intermediate_size": llava.stated(container, "vision.feed_forward_length"),
        "num_heads": llava.stated(container, "vision.attention.head_count"),
        "out_hidden_size": llava.stated(container, "vision.projection_dim"),
        "patch_size": patch,
        "spatial_merge_size": merge,
    }
    images = llava.preprocessor(container, patch_size=patch, merge_size=merge, **limits)
    return {
        "text_config": text,
        "vision_config": vision | tower,
        "image_token_id": llava.token(container, "<|image_pad|>"),
        "video_token_id": llava.token(container, "<|video_pad|>"),
        "vision_start_token_id": llava.token(container, "<|vision_start|>"),
        "vision_end_token_id": llava.token(container, "<|vision_end|>"),
        "preprocessor_config": images,
    }


SIDE = 560
"""The size of an image, which llama.cpp uses only to warm up."""


def sighted_keys(
    config: SightedConfig, raw: Mapping[str, Any], projector: str, **more: Any
) -> dict[str, Any]:
    """The keys of the projector of a Qwen-VL model, with the limits of an image in pixels."""
    images = raw.get("preprocessor_config") or {}
    size = images.get("size") or {}
    limits = {
        "image_min_pixels": images.get("min_pixels") or size.get("shortest_edge"),
        "image_max_pixels": images.get("max_pixels") or size.get("longest_edge"),
        "spatial_merge_size": config.vision.spatial_merge_size,
        "image_size": SIDE,
    }
    return llava.image_keys(config, raw, projector, **{**limits, **more})


def gguf_metadata(config: Config, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the projector; n_wa_pattern is the distance of layers with full attention."""
    first = next(iter(config.vision.fullatt_block_indexes), config.vision.depth - 1)
    return sighted_keys(config, raw, "qwen2.5vl_merger", n_wa_pattern=first + 1)


def tower_pairs(config: SightedConfig) -> tuple[Pair, ...]:
    """The names that the vision encoders of the families share, without layers."""
    kernel = qwen2_5_vl.Flatten(config.vision.patch_shape)
    ends = {"0": "linear_fc1", "2": "linear_fc2"}
    return (
        Pair("mmproj.v.patch_embd.weight", "visual.patch_embed.proj.weight", kernel),
        Pair("mmproj.v.post_ln", "visual.merger.norm"),
        *llava.pairs(ends, "mm", "visual.merger"),
    )


def names(config: Config) -> Names:
    """The names on the hub, and in the two GGUF files."""
    layers = llava.pairs(BLOCK, "v.blk.{i}", "visual.blocks.{i}")
    gguf = (*tower_pairs(config), *layers, *llama.GGUF)
    return replace(qwen2_5_vl.names(config), gguf=gguf)
