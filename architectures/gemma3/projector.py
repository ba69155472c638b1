"""Gemma 3 with images in two GGUF files: the config and the names of text and projector
(mmproj)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ostro import Container, Names, Pair
from ostro.architectures.gemma2.names import GGUF as TEXT
from ostro.architectures.gemma3 import names as gemma3
from ostro.architectures.gemma3 import vision
from ostro.architectures.llava import projector as llava

PROJECTOR = (
    Pair("mmproj.mm.soft_emb_norm", "multi_modal_projector.mm_soft_emb_norm"),
    Pair(
        "mmproj.mm.input_projection.weight",
        "multi_modal_projector.mm_input_projection.weight",
        vision.Transpose(),
    ),
)
LINES = 31
"""The largest number of newlines in one token of Gemma's vocabulary."""


def gguf_config(container: Container) -> dict[str, Any]:
    """The config.json, with newline tokens and image preprocessing.

    Some vocabularies lack the image placeholder; an unused token replaces it. Raises ConfigError
    for missing keys.
    """
    tower, tokens = llava.tower(container), container.metadata.get("tokenizer.ggml.tokens") or []
    pooled = 4
    if "clip.vision.projector.scale_factor" in container.metadata:
        pooled = llava.stated(container, "vision.projector.scale_factor")
    side = tower["image_size"]
    ids = {text: id for id, text in enumerate(tokens) if not text.strip("\n")}
    return {
        "text_config": gemma3.gguf_config(container),
        "vision_config": {**tower, "hidden_act": "gelu_pytorch_tanh", "vision_use_head": False},
        "mm_tokens_per_image": (side // tower["patch_size"] // pooled) ** 2,
        "image_token_index": llava.token(container, "<image_soft_token>", "<pad>"),
        "boi_token_index": llava.token(container, "<start_of_image>"),
        "eoi_token_index": llava.token(container, "<end_of_image>"),
        "line_token_ids": [ids.get("\n" * n) for n in range(1, LINES + 1)],
        "preprocessor_config": llava.preprocessor(container, size={"height": side, "width": side}),
    }


def gguf_metadata(config: vision.Config, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the projector; the factor of pooling has a key where it is not 4."""
    factor = None if config.pooled == 4 else config.pooled
    return llava.image_keys(config, raw, "gemma3", **{"projector.scale_factor": factor})


def names(config: vision.Config) -> Names:
    """The names on the hub, and in the two GGUF files, where norms already include the 1."""
    tower = llava.pairs(llava.TOWER, "v", "vision_tower")
    return replace(vision.names(config), gguf=(*tower, *PROJECTOR, *TEXT))
