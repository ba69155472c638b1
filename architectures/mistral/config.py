"""Mistral: Llama with a sliding window (Jiang et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass

from ostro.architectures.llama import model as llama
from ostro.config import WindowConfig


@dataclass(frozen=True, kw_only=True)
class Config(WindowConfig, llama.Config):
    sliding_window: int | None = 4096
