"""Gemma 4 with images and videos.

Reference class Gemma4ForConditionalGeneration of transformers. Its sound encoder is not
implemented: the weights are skipped, and requests with sound are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor

from ostro import Medium, Pair, Step, nn
from ostro.architectures.gemma4 import config as text
from ostro.architectures.gemma4 import model as gemma4
from ostro.architectures.gemma4 import sound, tower
from ostro.architectures.gemma4.names import Gemma4Names, text_names
from ostro.architectures.llava.config import SightedConfig
from ostro.architectures.llava.model import merge_features
from ostro.errors import ConfigError

SOUND = ("audio_tower", "embed_audio")
"""Modules of the sound encoder, which only the smaller models have."""


@dataclass(frozen=True, kw_only=True)
class Config(SightedConfig):
    """`audio` is the config of the sound encoder, from `audio_config`."""

    families: ClassVar[Mapping[str, str]] = {"text": "gemma4_text", "vision": "gemma4_vision"}
    text: text.Config
    vision: tower.Config
    image_token_index: int = 258880
    image_token_id: int | None = None
    video_token_id: int = 258884
    audio_token_id: int = 258881
    boi_token_id: int = 255999
    eoi_token_id: int = 258882
    boa_token_id: int = 256000
    eoa_token_index: int = 258883
    audio_config: dict[str, Any] | None = None
    audio: sound.Config | None = None
    tie_word_embeddings: bool = True

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        values = super().derive(raw, values)
        if (stated := values.get("audio_config")) is not None:
            kind = stated.get("model_type", "gemma4_audio")
            if kind != "gemma4_audio":
                raise ConfigError(f"audio_config is of model_type={kind!r:.80}")
            values["audio"] = sound.Config.from_hf(stated)
        return values

    def check(self) -> None:
        super().check()
        for name in ("video_token_id", "boi_token_id", "eoi_token_id", "audio_token_id"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}={getattr(self, name)} is negative")


class Embedder(nn.Module):
    """Projects rows of an encoder, normed without a weight, to the decoder's width."""

    def __init__(self, d: int, out: int, eps: float) -> None:
        super().__init__()
        self.embedding_projection = nn.Linear(d, out)
        self.embedding_pre_projection_norm = nn.RMSNorm(d, eps, weight=False)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """x [n, d] -> [n, out]."""
        return self.embedding_projection(self.embedding_pre_projection_norm(x)[0], step)


class Model(gemma4.Model):
    layers = ("vision_tower.encoder.layers", "audio_tower.layers", "model.layers")

    def __init__(self, config: Config) -> None:
        super().__init__(config.text)  # type: ignore[arg-type]
        visual = config.vision
        self.vision_tower = tower.Tower(visual)
        self.embed_vision = Embedder(
            visual.hidden_size, config.text.hidden_size, visual.rms_norm_eps
        )
        self.cell = visual.pooling_kernel_size**2
        if (audio := config.audio) is not None:
            self.audio_tower = sound.Tower(audio)
            width = audio.output_proj_dims
            self.embed_audio = Embedder(width, config.text.hidden_size, audio.rms_norm_eps)
        tokens = config.image_token_index, config.video_token_id, config.audio_token_id
        self.model.placeholders = tokens  # type: ignore[assignment]

    def encode(self, media: Sequence[Medium], step: Step) -> list[tuple[Tensor, ...]]:
        """Images and videos hold "patches" [n, k] and "grid" [3], sounds "spectrum" [n, bins]."""
        visual = [medium for medium in media if medium.kind != "audio"]
        rows = iter(self.encode_images(visual, step) if visual else ())
        return [
            (self.encode_audio(medium, step) if medium.kind == "audio" else next(rows),)
            for medium in media
        ]

    def encode_images(self, media: Sequence[Medium], step: Step) -> Sequence[Tensor]:
        """The features [n, d] of images and videos."""
        grids: list[tower.Grid] = [tuple(medium.arrays["grid"].tolist()) for medium in media]
        patches = torch.cat([medium.arrays["patches"] for medium in media])
        rows = self.embed_vision(self.vision_tower(patches, grids, step), step)
        return rows.split([prod(grid) // self.cell for grid in grids])

    def encode_audio(self, medium: Medium, step: Step) -> Tensor:
        """The features [n, d] of a sound."""
        return self.embed_audio(self.audio_tower(medium.arrays["spectrum"], step), step)

    def embed(self, step: Step) -> Tensor:
        """Embeddings of text, which are scaled, and of media, which are not."""
        return merge_features(super().embed(step), step.features)


def names(config: Config) -> Gemma4Names:
    """Checkpoints have all parts below `model`, the decoder at `model.language_model`."""
    found = text_names(config.text, ("model.language_model",))
    has_audio = config.audio is not None
    used = ("vision_tower", "embed_vision", *(SOUND if has_audio else ()))
    parts = [Pair(f"model.{part}", part) for part in used]
    unused = [f"{at}{part}.{{rest}}" for at in ("", "model.") for part in SOUND if not has_audio]
    return replace(found, hub=(*parts, *found.hub), ignore=(*found.ignore, *unused))
