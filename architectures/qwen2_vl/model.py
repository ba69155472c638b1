"""Qwen2-VL: Qwen2 with mrope and a vision encoder without windows (Wang et al. 2024).

Reference class Qwen2VLForConditionalGeneration of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ostro import Step, nn
from ostro.architectures.qwen2 import model as qwen2
from ostro.architectures.qwen2_5_vl import config as configs
from ostro.architectures.qwen2_5_vl import model as qwen2_5_vl
from ostro.architectures.qwen2_5_vl.grid import Grid, frames, places
from ostro.architectures.qwen2_5_vl.vision import AxialRope, PatchEmbed
from ostro.architectures.qwen3_vl.vision import Block, Merger
from ostro.config import check_sizes
from ostro.errors import ConfigError

ACTIVATIONS = ("quick_gelu", "gelu", "gelu_pytorch_tanh")
"""The supported values of hidden_act."""


@dataclass(frozen=True, kw_only=True)
class Text(configs.RopeConfig, qwen2.Config):
    """The text config."""

    max_position_embeddings: int = 32768
    rms_norm_eps: float = 1e-5
    max_window_layers: int = 80
    default_theta: ClassVar[float] = 1000000.0


@dataclass(frozen=True, kw_only=True)
class VisionConfig(configs.Tower):
    """The vision config. Files have the layers' width as `embed_dim`, and the text's as
    `hidden_size`.
    """

    depth: int = 32
    embed_dim: int = 1280
    hidden_size: int = 3584
    mlp_ratio: int = 4
    intermediate_size: int = 0
    num_heads: int = 16
    out_hidden_size: int = 3584
    patch_size: int = 14
    hidden_act: str = "quick_gelu"

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        values = super().derive(raw, values)
        width, ratio = (values.get(n, getattr(cls, n)) for n in ("embed_dim", "mlp_ratio"))
        return values | {
            "out_hidden_size": values.get("hidden_size", cls.hidden_size),
            "hidden_size": width,
            "intermediate_size": width * ratio,
        }

    def check(self) -> None:
        check_sizes(self, "embed_dim mlp_ratio", where="vision_config: ")
        super().check()
        if self.hidden_act not in ACTIVATIONS:
            raise ConfigError(f"vision_config: hidden_act={self.hidden_act!r} is not implemented")


@dataclass(frozen=True, kw_only=True)
class Config(configs.SightedConfig):
    text: Text
    vision: VisionConfig


class Tower(nn.Module):
    """The vision encoder: attention within frames, axial rope."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.merge = config.spatial_merge_size
        rope = AxialRope(config)
        self.patch_embed = PatchEmbed(config, bias=False)
        self.blocks = nn.ModuleList(Block(config, rope) for _ in range(config.depth))
        self.merger = Merger(config)

    def forward(self, patches: Tensor, grids: Sequence[Grid], step: Step) -> tuple[Tensor, ...]:
        """Patches [n, c * t * p * p] of consecutive media -> their rows [n / cell, out]."""
        spots = torch.from_numpy(places(grids, self.merge)).to(patches.device)
        frame = replace(step, positions=spots, bounds=frames(grids))
        x = self.patch_embed(patches, step)
        for block in self.blocks:
            x = block(x, frame)
        return (self.merger(x, step),)


class Model(qwen2_5_vl.Sighted, qwen2.Model):
    block = qwen2_5_vl.Block

    def __init__(self, config: Config) -> None:
        super().__init__(config.text)
        self.visual = Tower(config.vision)
