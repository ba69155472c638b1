"""Mllama's config: Llama with cross attention layers, and a vision encoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from ostro.architectures.llama import model as llama
from ostro.architectures.llava.config import SightedConfig
from ostro.config import ModelConfig, check_sizes
from ostro.errors import ConfigError

EXTRA = 8
"""Prompt-only tokens: rows of the embedding beyond the vocabulary of the head."""

GROUP = 8
"""The rows of a tile are padded to a multiple of this; attention includes the padding."""


@dataclass(frozen=True, kw_only=True)
class Text(llama.Config):
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 131072
    cross_attention_layers: tuple[int, ...] = (3, 8, 13, 18, 23, 28, 33, 38)
    default_theta: ClassVar[float] = 500000.0

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        values.setdefault("num_key_value_heads", 8)
        return super().derive(raw, values)

    def check(self) -> None:
        super().check()
        if not all(0 <= i < self.num_hidden_layers for i in self.cross_attention_layers):
            raise ConfigError(
                f"cross_attention_layers={list(self.cross_attention_layers)} are not among "
                f"num_hidden_layers={self.num_hidden_layers}"
            )
        if self.tie_word_embeddings:
            raise ConfigError("tie_word_embeddings=true is not implemented by mllama")


@dataclass(frozen=True, kw_only=True)
class Vision(ModelConfig):
    """supported_aspect_ratios: the tilings of an image, [rows, columns]."""

    hidden_size: int = 1280
    hidden_act: str = "gelu"
    num_hidden_layers: int = 32
    num_global_layers: int = 8
    attention_heads: int = 16
    num_channels: int = 3
    intermediate_size: int = 5120
    vision_output_dim: int = 7680
    image_size: int = 448
    patch_size: int = 14
    norm_eps: float = 1e-5
    max_num_tiles: int = 4
    intermediate_layers_indices: tuple[int, ...] = (3, 7, 15, 23, 30)
    supported_aspect_ratios: tuple[tuple[int, ...], ...] = (
        (1, 1),
        (1, 2),
        (1, 3),
        (1, 4),
        (2, 1),
        (2, 2),
        (3, 1),
        (4, 1),
    )

    @property
    def rows(self) -> int:
        """Rows of one tile: its class token, then its patches row by row."""
        return 1 + (self.image_size // self.patch_size) ** 2

    @property
    def padded(self) -> int:
        """Rows of one tile with its padding."""
        return -(-self.rows // GROUP) * GROUP

    def check(self) -> None:
        super().check()
        if self.hidden_act != "gelu":
            raise ConfigError(f"hidden_act={self.hidden_act!r} is not implemented; expected gelu")
        check_sizes(
            self,
            "hidden_size num_hidden_layers num_global_layers attention_heads num_channels "
            "intermediate_size image_size patch_size max_num_tiles",
        )
        if self.hidden_size % self.attention_heads:
            raise ConfigError(
                f"hidden_size={self.hidden_size} is not a multiple of "
                f"attention_heads={self.attention_heads}"
            )
        self.check_output()

    def check_output(self) -> None:
        """Raise ConfigError for invalid intermediate layers or aspect ratios."""
        taken = self.intermediate_layers_indices
        if not all(0 <= i < self.num_hidden_layers for i in taken):
            raise ConfigError(f"intermediate_layers_indices={list(taken)} are not all layers")
        if self.vision_output_dim != self.hidden_size * (1 + len(taken)):
            raise ConfigError(
                f"vision_output_dim={self.vision_output_dim} is not hidden_size={self.hidden_size} "
                f"of the last layer and of {len(taken)} others"
            )
        for ratio in self.supported_aspect_ratios:
            if len(ratio) != 2 or not 0 < prod(ratio) <= self.max_num_tiles or min(ratio) < 1:
                raise ConfigError(
                    f"supported_aspect_ratios: {list(ratio)} is not a tiling of at most "
                    f"max_num_tiles={self.max_num_tiles}"
                )


@dataclass(frozen=True, kw_only=True)
class Config(SightedConfig):
    families: ClassVar[Mapping[str, str]] = {
        "text": "mllama_text_model",
        "vision": "mllama_vision_model",
    }
    text: Text
    vision: Vision
    image_token_index: int = 128256

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        values = super().derive(raw, values)
        return values | {"vocab_size": values["text"].vocab_size + EXTRA}

    @property
    def rows(self) -> int:
        """The largest number of rows of an image in the cross attention cache."""
        return self.vision.max_num_tiles * self.vision.rows
