"""Ministral 3: Llama with YaRN and queries that grow with their position (Mistral AI 2025).

Reference class Ministral3ForCausalLM of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ostro import Step, nn
from ostro.architectures.llama import model as llama
from ostro.config import WindowConfig
from ostro.errors import ConfigError

ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1000000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
"""The rope parameters of files without any."""


@dataclass(frozen=True, kw_only=True)
class Config(WindowConfig, llama.Config):
    sliding_window: int | None = None

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        stated = any(raw.get(key) for key in ("rope_parameters", "rope_scaling"))
        return super().derive(raw if stated else {**raw, "rope_parameters": ROPE}, values)

    def check(self) -> None:
        super().check()
        beta = self.rope_parameters.get("llama_4_scaling_beta")
        if type(beta) not in (int, float) or not 0 <= beta < 1e6:
            raise ConfigError(f"rope_parameters: llama_4_scaling_beta={beta!r:.80} is not a factor")
        trained = self.rope_parameters.get("original_max_position_embeddings")
        if type(trained) is not int or not 0 < trained < 1 << 62:
            raise ConfigError(
                f"rope_parameters: original_max_position_embeddings={trained!r:.80} is not a "
                "number of positions"
            )


class Attention(nn.Attention):
    """Attention with queries scaled by 1 + beta log(1 + floor(position / original context))."""

    def __init__(self, config: Config, layer: int, rope: nn.Rope) -> None:
        super().__init__(config, layer, rope, window=config.window(layer))
        self.beta = float(config.rope_parameters["llama_4_scaling_beta"])
        self.trained = int(config.rope_parameters["original_max_position_embeddings"])

    def rotate_and_write(self, q: Tensor, k: Tensor, v: Tensor, step: Step) -> Tensor:
        q = super().rotate_and_write(q, k, v, step)
        stretches = torch.div(step.positions[0], self.trained, rounding_mode="floor")
        scale = 1 + self.beta * torch.log1p(stretches.float())
        return q * scale[:, None, None].to(q.dtype)


class Block(llama.Block):
    def attention(self, config: Config, layer: int, rope: nn.Rope, **more: Any) -> nn.Module:
        return Attention(config, layer, rope)


class Model(llama.Model):
    block = Block
