"""Configs of architectures: the base classes, and checks of their fields."""

from __future__ import annotations

from ostro.core.config import (
    MAX_EXPERTS,
    MAX_SIZE,
    ModelConfig,
    TextConfig,
    WindowConfig,
    check_sizes,
    check_type,
    decode_floats,
    reference_defaults,
    rope_parameters,
)

__all__ = [
    "MAX_EXPERTS",
    "MAX_SIZE",
    "ModelConfig",
    "TextConfig",
    "WindowConfig",
    "check_sizes",
    "check_type",
    "decode_floats",
    "reference_defaults",
    "rope_parameters",
]
