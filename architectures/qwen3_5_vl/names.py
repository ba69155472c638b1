"""The names of Qwen3.5 with media on the hub, and in the GGUF files of text and projector."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ostro import Container
from ostro.architectures.qwen3_5 import names as qwen3_5
from ostro.architectures.qwen3_5_vl.model import Config, SparseConfig
from ostro.architectures.qwen3_next.names import LayerNames
from ostro.architectures.qwen3_vl import names as qwen3_vl
from ostro.architectures.qwen3_vl import projector


def names(config: Config | SparseConfig) -> LayerNames:
    text = qwen3_5.names(config.text)
    return replace(
        text,
        hub=(*qwen3_5.hub_pairs(config.text, qwen3_5.LANGUAGE), *qwen3_vl.names(config).hub),
        gguf=(*projector.tower_names(config), *text.gguf),
        ignore=qwen3_5.IGNORED,
    )


def gguf_config(container: Container) -> dict[str, Any]:
    """Qwen3-VL's config.json with the text config of Qwen3.5."""
    raw, text = projector.gguf_config(container), qwen3_5.gguf_config(container)
    sections = raw["text_config"]["rope_parameters"].get("mrope_section")
    if sections is not None:
        text["rope_parameters"]["mrope_section"] = sections
    return raw | {"text_config": text}
