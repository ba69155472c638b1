"""The text models and vision encoders that LLaVA's families combine."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module

from ostro import Architecture, nn
from ostro.architectures.clip import vision as clip
from ostro.architectures.pixtral import model as pixtral
from ostro.architectures.siglip import model as siglip

TEXTS = {
    "llama": "llama",
    "mistral": "mistral",
    "ministral3": "ministral3",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma": "gemma",
    "granite": "granite",
    "phi3": "phi3",
}
"""The folder of the architecture of each model_type of a text_config."""

TOWERS: Mapping[str, tuple[type[clip.VisionConfig], type[nn.Module]]] = {
    "clip_vision_model": (clip.VisionConfig, clip.VisionTower),
    "siglip_vision_model": (siglip.Config, siglip.VisionTower),
    "pixtral": (pixtral.Config, pixtral.VisionTower),
}
"""Config and encoder of each model_type of a vision_config."""


@cache
def text_record(model_type: str) -> Architecture:
    """The architecture of a text model."""
    module = import_module(f"ostro.architectures.{TEXTS[model_type]}")
    found: Architecture = next(iter(module.ostro_architectures()))
    return found
