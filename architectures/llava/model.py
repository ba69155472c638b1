"""LLaVA: a decoder with a vision encoder and a projector (Liu et al. 2023).

Reference class LlavaForConditionalGeneration of transformers, which does not divide the logits of
Granite by logits_scaling, as the text model does; here they are divided.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro import Features, Medium, Names, Pair, Step, nn, resolve
from ostro.architectures.clip import model as clip
from ostro.architectures.clip.vision import VisionConfig
from ostro.architectures.llava.config import SightedConfig
from ostro.architectures.llava.parts import TEXTS, TOWERS, text_record
from ostro.architectures.pixtral import model as pixtral
from ostro.config import ModelConfig, TextConfig
from ostro.errors import ConfigError

ACTIVATIONS = {**clip.ACTIVATIONS, "relu": F.relu}
"""Activations of projectors."""


@dataclass(frozen=True, kw_only=True)
class Config(SightedConfig):
    """vision_feature_layer: the layers whose states are features, counted from the embeddings (0)
    or from the last layer (-1); several are concatenated. "default" features omit the first row,
    which is the class token of CLIP.
    """

    families: ClassVar[Mapping[str, str]] = {"text": "llama", "vision": "clip_vision_model"}
    text: TextConfig
    vision: VisionConfig
    text_type: str = "llama"
    vision_type: str = "clip_vision_model"
    image_token_index: int = 32000
    projector_hidden_act: str = "gelu"
    vision_feature_select_strategy: str = "default"
    vision_feature_layer: tuple[int, ...] = (-2,)
    multimodal_projector_bias: bool = True

    @classmethod
    def kinds(cls, name: str) -> Collection[str]:
        return TEXTS if name == "text" else TOWERS

    @classmethod
    def kind(cls, name: str, raw: Mapping[str, Any]) -> type[ModelConfig]:
        model_type = cls.model_type(name, raw)
        if name == "vision":
            return TOWERS[model_type][0]
        found: type[ModelConfig] = resolve(text_record(model_type).config)
        return found

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], *, allow: Sequence[str] = ()) -> Self:
        """As the base class; vision_feature_layer may be one layer or a list."""
        layer = raw.get("vision_feature_layer")
        more: dict[str, Any] = {"vision_feature_layer": [layer]} if isinstance(layer, int) else {}
        more |= {f"{name}_type": cls.model_type(name, raw) for name in ("text", "vision")}
        return super().from_hf({**raw, **more}, allow=allow)

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
        if self.projector_hidden_act not in ACTIVATIONS:
            raise ConfigError(
                f"projector_hidden_act={self.projector_hidden_act!r} is not implemented; expected "
                f"one of {', '.join(ACTIVATIONS)}"
            )
        if self.vision_feature_select_strategy not in ("default", "full"):
            raise ConfigError(
                f"vision_feature_select_strategy={self.vision_feature_select_strategy!r} is not "
                "implemented; expected default or full"
            )
        if self.vision_type == "pixtral" and self.vision_feature_select_strategy != "full":
            raise ConfigError(
                "vision_feature_select_strategy='default' is not implemented for Pixtral's vision "
                "encoder, which has no class token; expected full"
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
        self.act = ACTIVATIONS[config.projector_hidden_act]

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """x [n, seen] -> [n, d]."""
        return self.linear_2(self.act(self.linear_1(x, step)), step)


def merge_features(x: Tensor, features: Features | None) -> Tensor:
    """Embeddings [T, d], with features in the rows of placeholders."""
    return x if features is None else x.index_copy(0, features.rows, features.values)


LAYERS = "vision_tower.encoder.layers"


@cache
def combined(model: Any, text: Any) -> Any:
    """A subclass of a vision model and a text model."""
    layers = (LAYERS, *text.layers)
    return type(model.__name__, (model, text), {"__module__": model.__module__, "layers": layers})


class Model(nn.TokenModel):
    """A decoder with a vision encoder. An instance derives from the text's model as well."""

    projector: ClassVar[type[Projector]] = Projector

    def __new__(cls, config: Config) -> Any:
        model: Any = cls
        text = resolve(text_record(config.text_type).model)
        return super().__new__(combined(model, text))

    def __init__(self, config: Config) -> None:
        super().__init__(config.text)
        self.chosen = config.vision_feature_layer
        self.skipped = int(config.vision_feature_select_strategy == "default")
        self.vision_tower = TOWERS[config.vision_type][1](config.seen)
        self.mixed_sizes = config.vision_type == "pixtral"
        if not self.mixed_sizes:
            # it does not affect the features, and some checkpoints lack it
            del self.vision_tower.post_layernorm
        self.multi_modal_projector = self.projector(config)
        # Granite multiplies the features as well as the embeddings of tokens
        self.feature_multiplier = float(getattr(config.text, "embedding_multiplier", 1.0))

    def encode(self, media: Sequence[Medium], step: Step) -> list[tuple[Tensor, ...]]:
        """Media hold "pixels" [3, image_size, image_size], or of any size for Pixtral."""
        images = [medium.arrays["pixels"] for medium in media]
        if self.mixed_sizes:
            return self.encode_sizes(images, step)
        pixels = torch.stack(images)
        return [(each,) for each in self.features(pixels, step)]

    def encode_sizes(self, images: Sequence[Tensor], step: Step) -> list[tuple[Tensor, ...]]:
        """The features of images of different sizes."""
        tower: Any = self.vision_tower
        states = tower(images, step)
        x = torch.cat([states[i] for i in self.chosen], -1)
        patch = tower.patch_conv.weight.shape[-1]
        sizes = [(image.shape[1] // patch, image.shape[2] // patch) for image in images]
        grids = x.split([rows * columns for rows, columns in sizes])
        merged = [self.merge(grid, size) for grid, size in zip(grids, sizes, strict=True)]
        counts = [len(each) for each in merged]
        index = torch.arange(len(images)).repeat_interleave(torch.tensor(counts)).to(x.device)
        rows = self.multi_modal_projector(torch.cat(merged), step.rows(index))
        return [(each,) for each in rows.split(counts)]

    def merge(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        """The projector's rows of an image, from its patches [rows * columns, width]."""
        return x

    def features(self, pixels: Tensor, step: Step) -> Tensor:
        """The features of images [n, 3, image_size, image_size]: [n, rows, d]."""
        return self.project(self.select(pixels, step), step)

    def select(self, pixels: Tensor, step: Step) -> Tensor:
        """The states of the chosen layers, concatenated: [n, rows, width]."""
        states = self.vision_tower(pixels, step)
        return torch.cat([states[i][:, self.skipped :] for i in self.chosen], -1)

    def project(self, x: Tensor, step: Step) -> Tensor:
        """x [n, rows, width] -> [n, rows, d]; step has a row for each of n images."""
        n, length = x.shape[:2]
        index = torch.arange(n, device=x.device).repeat_interleave(length)
        return self.multi_modal_projector(x.flatten(0, 1), step.rows(index)).view(n, length, -1)

    def embed(self, step: Step) -> Tensor:
        text: Any = super()
        features = step.features
        if features is not None and self.feature_multiplier != 1:
            features = replace(features, values=features.values * self.feature_multiplier)
        return merge_features(text.embed(step), features)


TEXT = (
    Pair("language_model.model", "model"),
    Pair("language_model.lm_head", "lm_head"),
    Pair("model.language_model", "model"),
)
"""Checkpoints have the decoder at `language_model`, transformers 5 below `model`."""

PATHS = (
    "vision_tower.vision_model",
    "vision_tower",
    "model.vision_tower.vision_model",
    "model.vision_tower",
)
"""The paths of the vision encoder in checkpoints and module trees."""


def text_pairs(names: Names) -> Iterator[Pair]:
    """The hub's names of a text model, below its names in a model with images."""
    for text in TEXT:
        for pair in names.hub:
            if pair.theirs == text.ours or pair.theirs.startswith(f"{text.ours}."):
                theirs = pair.theirs.replace(text.ours, text.theirs, 1)
                yield Pair(theirs, pair.ours, pair.transform)
    yield from TEXT


def text_names(config: Config) -> Names:
    """The names of the text model alone."""
    source = text_record(config.text_type).names
    found: Names = resolve(source)(config.text) if source else Names()
    return found


def names(config: Config) -> Names:
    """Unused layers of the vision encoder, and the norm after them, are ignored."""
    count, used = config.vision.num_hidden_layers, config.seen.num_hidden_layers
    layers = [f"encoder.layers.{i}" for i in range(count)]
    embedded = [f"embeddings.{kind}_embedding" for kind in ("class", "patch", "position")]
    parts = (*embedded, "pre_layrnorm", *layers[:used])
    tower = [Pair(f"{root}.{part}", f"vision_tower.{part}") for root in PATHS for part in parts]
    hidden = (*layers[used:], "post_layernorm", "head")
    unseen = [f"{root}.{layer}.{{rest}}" for root in PATHS for layer in hidden]
    projector = "multi_modal_projector"
    if config.vision_type == "pixtral":
        tower, unseen = pixtral_names(count, used)
    return Names(
        hub=(*tower, Pair(f"model.{projector}", projector), *text_pairs(text_names(config))),
        ignore=(*Names.ignore, *(f"{root}.embeddings.position_ids" for root in PATHS), *unseen),
    )


def pixtral_names(count: int, used: int) -> tuple[list[Pair], list[str]]:
    """The names of Pixtral's vision encoder, and those of its unused layers."""
    roots = ("vision_tower.", "model.vision_tower.")
    hidden = [f"transformer.layers.{i}.{{rest}}" for i in range(used, count)]
    unseen = [f"{root}{layer}" for root in roots for layer in hidden]
    return [pair for root in roots for pair in pixtral.pairs(root, "vision_tower", used)], unseen
