"""Llama with ReLU."""

from __future__ import annotations

from dataclasses import dataclass

from ostro.trunks import llama


@dataclass(frozen=True, kw_only=True)
class Config(llama.Config):
    hidden_act: str = "relu"


Model = llama.Model
