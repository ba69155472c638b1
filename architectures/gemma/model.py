"""Gemma 1: Llama with embeddings times sqrt(d) and GELU in the MLP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ostro import Step
from ostro.architectures.llama import model as llama


@dataclass(frozen=True, kw_only=True)
class Config(llama.Config):
    head_dim: int = 256
    hidden_act: str = "gelu_pytorch_tanh"
    tie_word_embeddings: bool = True
    unimplemented: ClassVar[Mapping[str, Any]] = {
        **llama.Config.unimplemented,
        "use_bidirectional_attention": False,
    }

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        """Replace "gelu" of the first releases by the tanh approximation, as the reference does."""
        values = super().derive(raw, values)
        if values.get("hidden_act") == "gelu":
            values["hidden_act"] = "gelu_pytorch_tanh"
        return values


class Model(llama.Model):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.scale = config.hidden_size**0.5

    def embed(self, step: Step) -> Tensor:
        """Embeddings times sqrt(d), the factor rounded to their dtype as in the reference."""
        x = super().embed(step)
        return x * torch.tensor(self.scale, dtype=x.dtype)
