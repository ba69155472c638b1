"""Code World Model: Llama with a window on all but every fourth layer (Meta 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ostro.architectures.llama import model as llama
from ostro.config import WindowConfig

ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1000000.0,
    "factor": 16.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
}
"""The rope of files that state none."""


@dataclass(frozen=True, kw_only=True)
class Config(WindowConfig, llama.Config):
    head_dim: int = 128
    rms_norm_eps: float = 1e-5
    sliding_window: int | None = 8192
    default_theta: ClassVar[float] = 1000000.0

    def slides(self, layer: int) -> bool:
        return layer % 4 != 0

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        stated = any(raw.get(key) for key in ("rope_parameters", "rope_scaling"))
        return super().derive(raw if stated else {**raw, "rope_parameters": ROPE}, values)
