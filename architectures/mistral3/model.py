"""Mistral 3: Mistral with Pixtral's vision encoder, whose patches are merged in cells.

Reference class Mistral3ForConditionalGeneration of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ostro import Step, nn
from ostro.architectures.llava import model as llava
from ostro.config import check_sizes
from ostro.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Config(llava.Config):
    """spatial_merge_size: the side, in patches, of a cell that becomes one row."""

    families: ClassVar[Mapping[str, str]] = {"text": "mistral", "vision": "pixtral"}
    text_type: str = "mistral"
    vision_type: str = "pixtral"
    image_token_index: int = 10
    vision_feature_select_strategy: str = "full"
    vision_feature_layer: tuple[int, ...] = (-1,)
    multimodal_projector_bias: bool = False
    spatial_merge_size: int = 2

    @classmethod
    def kinds(cls, name: str) -> Sequence[str]:
        return TEXTS if name == "text" else ("pixtral",)

    def check(self) -> None:
        super().check()
        check_sizes(self, "spatial_merge_size")
        if len(self.vision_feature_layer) != 1:
            raise ConfigError(
                f"vision_feature_layer={list(self.vision_feature_layer)} are several layers, which "
                "this architecture does not implement"
            )


TEXTS = ("mistral", "ministral3")
"""The model types of a text_config."""


class PatchMerger(nn.Module):
    """One linear over the patches of a cell."""

    def __init__(self, d: int, side: int) -> None:
        super().__init__()
        self.side = side
        self.merging_layer = nn.Linear(d * side**2, d)

    def gather(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        """Patches [rows * columns, d] -> cells [n, d * side * side], the channel outermost.

        Patches beyond the last whole cell are dropped.
        """
        rows, columns = size[0] // self.side, size[1] // self.side
        grid = x.view(*size, -1)[: rows * self.side, : columns * self.side]
        cells = grid.reshape(rows, self.side, columns, self.side, -1).permute(0, 2, 4, 1, 3)
        return cells.reshape(rows * columns, -1)


class Projector(llava.Projector):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        d = config.vision.hidden_size
        self.norm = nn.RMSNorm(d, config.text.rms_norm_eps)
        self.patch_merger = PatchMerger(d, config.spatial_merge_size)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        return super().forward(self.patch_merger.merging_layer(x, step), step)


class Model(llava.Model):
    projector: ClassVar[type[llava.Projector]] = Projector

    def merge(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        projector: Any = self.multi_modal_projector
        return projector.patch_merger.gather(projector.norm(x)[0], size)
