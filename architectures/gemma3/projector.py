"""Gemma 3 with images in two GGUF files: what a text's and a projector's (mmproj) say."""

from __future__ import annotations

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
"""The most ends of lines that one token of Gemma's vocabulary has."""


def gguf_config(container: Container) -> dict[str, Any]:
    """A config.json, with the tokens of so many ends of lines, and how images are made ready.

    Vocabularies of some files lack the token that holds an image's rows; one that no text has
    takes its place. Raises ConfigError for what is missing.
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


def names(config: vision.Config) -> Names:
    """As files of the hub, and in two GGUF files; the converter adds the 1 to norms itself."""
    tower = llava.pairs(llava.TOWER, "v", "vision_tower")
    return replace(vision.names(config), gguf=(*tower, *PROJECTOR, *TEXT))
