"""ViP-LLaVA: LLaVA with the features of several layers and a norm before the projector (Cai et al.
2023).

Reference class VipLlavaForConditionalGeneration of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import Tensor

from ostro import Step, nn
from ostro.architectures.llava import model as llava
from ostro.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Config(llava.Config):
    """Older files have vision_feature_layer as vision_feature_layers."""

    vision_feature_layer: tuple[int, ...] = (-2, -5, -8, -11, 6)
    projector_layernorm_eps: float = 1e-5

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], *, allow: Sequence[str] = ()) -> Self:
        layers = raw.get("vision_feature_layer", raw.get("vision_feature_layers"))
        return super().from_hf({**raw, "vision_feature_layer": layers}, allow=allow)

    def check(self) -> None:
        super().check()
        if self.vision_feature_select_strategy != "default" or not self.multimodal_projector_bias:
            raise ConfigError(
                "vision_feature_select_strategy and multimodal_projector_bias are not fields of "
                "this family; delete them"
            )
        if not 0 <= self.projector_layernorm_eps < 1:
            raise ConfigError(f"projector_layernorm_eps={self.projector_layernorm_eps} is not 0..1")


class Projector(llava.Projector):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        width = config.vision.hidden_size * len(config.vision_feature_layer)
        self.projector_layernorm = nn.LayerNorm(width, config.projector_layernorm_eps)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        return super().forward(self.projector_layernorm(x)[0], step)


class Model(llava.Model):
    projector: ClassVar[type[llava.Projector]] = Projector
