"""Mistral's keys in GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostro import Container
from ostro.architectures.llama import names as llama
from ostro.errors import ConfigError


def gguf_config(container: Container) -> dict[str, Any]:
    """As Llama's. Raises ConfigError for Ministral 3, which scales q by the position."""
    key = "mistral3.attention.temperature_scale"
    if container.metadata.get(key):
        raise ConfigError(f"{container.path.name}: {key} is not implemented (Ministral 3)")
    return llama.gguf_config(container)


def gguf_metadata(config: Any, raw: Mapping[str, Any]) -> dict[str, Any]:
    """In GGUF files this family is "llama"."""
    return {"general.architecture": "llama"}
