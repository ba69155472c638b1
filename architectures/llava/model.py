"""LLaVA: Llama with a CLIP vision encoder and a projector (Liu et al. 2023).

Reference class LlavaForConditionalGeneration of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro import Features, Medium, Names, Pair, Step, nn
from ostro.architectures.clip.vision import VisionConfig, VisionTower
from ostro.architectures.llama import model as llama
from ostro.architectures.llava.config import SightedConfig
from ostro.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Config(SightedConfig):
    """vision_feature_layer: the layers whose states are features, counted from the embeddings (0)
    or from the last layer (-1); several are concatenated. "default" features omit the class token.
    """

    families: ClassVar[Mapping[str, str]] = {"text": "llama", "vision": "clip_vision_model"}
    text: llama.Config
    vision: VisionConfig
    image_token_index: int = 32000
    projector_hidden_act: str = "gelu"
    vision_feature_select_strategy: str = "default"
    vision_feature_layer: tuple[int, ...] = (-2,)
    multimodal_projector_bias: bool = True

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], *, allow: Sequence[str] = ()) -> Self:
        """As the base class; vision_feature_layer may be one layer or a list."""
        layer = raw.get("vision_feature_layer")
        one = {"vision_feature_layer": [layer]} if isinstance(layer, int) else {}
        return super().from_hf({**raw, **one}, allow=allow)

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        """vision_feature_layer, counted from the embeddings."""
        values = super().derive(raw, values)
        count = values["vision"].num_hidden_layers + 1
        layers = values.get("vision_feature_layer", cls.vision_feature_layer)
        chosen = tuple(i + count if i < 0 else i for i in layers)
        if not chosen or not all(0 <= i < count for i in chosen):
            raise ConfigError(
                f"vision_feature_layer={list(layers)} is out of range for a vision encoder of "
                f"{count - 1} layers"
            )
        return values | {"vision_feature_layer": chosen}

    def check(self) -> None:
        super().check()
        if self.projector_hidden_act != "gelu":
            raise ConfigError(
                f"projector_hidden_act={self.projector_hidden_act!r} is not implemented; expected "
                "gelu"
            )
        if self.vision_feature_select_strategy not in ("default", "full"):
            raise ConfigError(
                f"vision_feature_select_strategy={self.vision_feature_select_strategy!r} is not "
                "implemented; expected default or full"
            )

    @property
    def seen(self) -> VisionConfig:
        """The vision config without the layers after the last feature layer."""
        return replace(self.vision, num_hidden_layers=max(self.vision_feature_layer))


class Projector(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        d, bias = config.text.hidden_size, config.multimodal_projector_bias
        seen = config.vision.hidden_size * len(config.vision_feature_layer)
        self.linear_1 = nn.Linear(seen, d, bias=bias)
        self.linear_2 = nn.Linear(d, d, bias=bias, shard="rowwise")

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """x [n, seen] -> [n, d]."""
        return self.linear_2(F.gelu(self.linear_1(x, step)), step)


def merge_features(x: Tensor, features: Features | None) -> Tensor:
    """Embeddings [T, d], with features in the rows of placeholders."""
    return x if features is None else x.index_copy(0, features.rows, features.values)


class Model(llama.Model):
    layers = ("vision_tower.encoder.layers", "model.layers")

    def __init__(self, config: Config) -> None:
        super().__init__(config.text)
        self.chosen = config.vision_feature_layer
        self.skipped = int(config.vision_feature_select_strategy == "default")
        self.vision_tower = VisionTower(config.seen)
        # it does not affect the features, and some checkpoints lack it
        del self.vision_tower.post_layernorm
        self.multi_modal_projector = Projector(config)

    def encode(self, media: Sequence[Medium], step: Step) -> list[tuple[Tensor, ...]]:
        """Media hold "pixels" [3, image_size, image_size]."""
        pixels = torch.stack([medium.arrays["pixels"] for medium in media])
        states = self.vision_tower(pixels, step)
        x = torch.cat([states[i][:, self.skipped :] for i in self.chosen], -1)
        n, length = x.shape[:2]
        index = torch.arange(n, device=x.device).repeat_interleave(length)
        features = self.multi_modal_projector(x.flatten(0, 1), step.rows(index))
        return [(each,) for each in features.split(length)]

    def embed(self, step: Step) -> Tensor:
        return merge_features(super().embed(step), step.features)


TEXT = (
    Pair("language_model.model", "model"),
    Pair("language_model.lm_head", "lm_head"),
    Pair("model.language_model", "model"),
)
"""Checkpoints have the decoder at `language_model`, transformers 5 below `model`."""

TOWERS = (
    "vision_tower.vision_model",
    "vision_tower",
    "model.vision_tower.vision_model",
    "model.vision_tower",
)
"""The paths of the vision encoder in checkpoints and module trees."""


def names(config: Config) -> Names:
    """Unused layers of the vision encoder, and the norm after them, are ignored."""
    count, used = config.vision.num_hidden_layers, config.seen.num_hidden_layers
    layers = [f"encoder.layers.{i}" for i in range(count)]
    embedded = [f"embeddings.{kind}_embedding" for kind in ("class", "patch", "position")]
    parts = (*embedded, "pre_layrnorm", *layers[:used])
    tower = [Pair(f"{root}.{part}", f"vision_tower.{part}") for root in TOWERS for part in parts]
    hidden = (*layers[used:], "post_layernorm")
    unseen = [f"{root}.{layer}.{{rest}}" for root in TOWERS for layer in hidden]
    projector = "multi_modal_projector"
    return Names(
        hub=(*tower, Pair(f"model.{projector}", projector), *TEXT),
        ignore=(*Names.ignore, *(f"{root}.embeddings.position_ids" for root in TOWERS), *unseen),
    )
