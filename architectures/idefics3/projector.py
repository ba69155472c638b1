"""Idefics 3 and SmolVLM in two GGUF files: the config and the names of text and projector (mmproj).

Source: llama.cpp's converter and tools/mtmd, 2026.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ostro import Container, Names
from ostro.architectures.idefics3 import FAKE, WHOLE, model
from ostro.architectures.llama import names as llama
from ostro.architectures.llava import projector as llava

TILE = re.compile(r"<row_\d+_col_\d+>")
LINES = {"\n": ("\n", "\u010a"), "\n\n": ("\n\n", "\u010a\u010a")}
"""The texts of newline tokens, plain and in byte-level vocabularies."""


def gguf_config(container: Container) -> dict[str, Any]:
    """The config.json, with the tokens around images. Raises ConfigError for missing keys."""
    tower = llava.tower(container) | {"hidden_act": "gelu_pytorch_tanh"}
    tokens = container.metadata.get("tokenizer.ggml.tokens") or []
    marks = {text: id for id, text in enumerate(tokens) if TILE.fullmatch(text)}
    marks |= {text: llava.token(container, text) for text in (FAKE, WHOLE)}
    for text, forms in LINES.items():
        found = [tokens.index(form) for form in forms if form in tokens]
        marks |= {text: found[0]} if found else {}
    side, edge = tower["image_size"], "vision.preproc_image_size"
    known = f"clip.{edge}" in container.metadata
    size = llava.stated(container, edge) if known else 4 * side
    images = llava.preprocessor(
        container, size={"longest_edge": size}, max_image_size={"longest_edge": side}
    )
    return {
        "text_config": {**llama.gguf_config(container), "model_type": "llama"},
        "vision_config": tower,
        "scale_factor": llava.stated(container, "vision.projector.scale_factor"),
        "image_token_id": llava.token(container, "<image>"),
        "image_marks": marks,
        "preprocessor_config": images,
    }


def gguf_metadata(config: model.Config, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the projector, with the longest side of an image before it is cut into tiles."""
    size = (raw.get("preprocessor_config") or {}).get("size") or {}
    more = {
        "projector.scale_factor": config.scale_factor,
        "preproc_image_size": size.get("longest_edge", config.vision.image_size),
    }
    return llava.image_keys(config, raw, "idefics3", **more)


def names(config: model.Config) -> Names:
    """The names on the hub, and in the two GGUF files; q and k are interleaved in the text's."""
    tower_pairs = llava.pairs(llava.TOWER, "v", "vision_model")
    ends = llava.pairs({"fc": "modality_projection.proj"}, "mm.model", "connector")
    return replace(model.names(config), gguf=(*tower_pairs, *ends, *llama.names(config.text).gguf))
