"""InternLM 3's names in GGUF files: those of Llama."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostro.architectures.internlm3.model import Config
from ostro.architectures.llama.names import names

__all__ = ["gguf_metadata", "names"]


def gguf_metadata(config: Config, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The architecture of the files."""
    return {"general.architecture": "llama"}
