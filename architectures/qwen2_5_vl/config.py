"""Qwen2.5-VL's config: Qwen2 with mrope, and a vision encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self, get_type_hints

from ostro.architectures.clip.vision import MAX_LAYERS
from ostro.architectures.qwen2 import model as qwen2
from ostro.config import ModelConfig, TextConfig, check_sizes, reference_defaults
from ostro.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class RopeConfig(TextConfig):
    """A decoder with mrope: positions in time, rows and columns."""

    default_sections: ClassVar[tuple[int, ...]] = (16, 24, 24)

    @property
    def sections(self) -> tuple[int, ...]:
        """The number of pairs of a head per position axis."""
        return tuple(self.rope_parameters.get("mrope_section") or self.default_sections)

    def check(self) -> None:
        super().check()
        given = self.rope_parameters.get("mrope_section", ())
        if given is not None and (
            not isinstance(given, list | tuple) or any(type(size) is not int for size in given)
        ):
            raise ConfigError(
                f"rope_parameters: mrope_section={given!r:.80} is not a list of sizes"
            )
        part = self.rope_parameters.get("partial_rotary_factor", 1.0)
        if isinstance(part, bool | str | list | dict) or not 0 < part <= 1:
            raise ConfigError(
                f"rope_parameters: partial_rotary_factor={part!r:.80} is not within 0..1"
            )
        pairs = int(self.head_dim * part) // 2
        if len(self.sections) != 3 or sum(self.sections) != pairs or min(self.sections) < 0:
            raise ConfigError(
                f"rope_parameters: mrope_section={list(self.sections)} are not three sections of "
                f"the {pairs} rotated pairs of a head"
            )


@dataclass(frozen=True, kw_only=True)
class Text(RopeConfig, qwen2.Config):
    """The text config."""

    default_theta: ClassVar[float] = 1000000.0


@dataclass(frozen=True, kw_only=True)
class Tower(ModelConfig):
    """The vision config of the Qwen-VL families, with transformers' names."""

    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    out_hidden_size: int
    patch_size: int
    hidden_act: str = "silu"
    in_channels: int = 3
    spatial_merge_size: int = 2
    temporal_patch_size: int = 2
    rope_parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def patch_shape(self) -> tuple[int, int, int, int]:
        """Channels, frames, rows and columns of a patch."""
        size = self.patch_size
        return self.in_channels, self.temporal_patch_size, size, size

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    def check(self) -> None:
        super().check()
        check_sizes(
            self,
            "depth hidden_size intermediate_size num_heads out_hidden_size patch_size in_channels "
            "spatial_merge_size temporal_patch_size",
            where="vision_config: ",
        )
        if self.depth > MAX_LAYERS:
            raise ConfigError(f"vision_config: depth={self.depth} is not within 1..{MAX_LAYERS}")
        if self.hidden_size % (4 * self.num_heads):
            raise ConfigError(
                f"vision_config: hidden_size={self.hidden_size} does not make "
                f"num_heads={self.num_heads} heads with pairs for rows and columns"
            )
        if self.rope_parameters.get("rope_type", "axial") not in ("axial", "default"):
            raise ConfigError(f"vision_config: rope {self.rope_parameters} is not implemented")


@dataclass(frozen=True, kw_only=True)
class WindowTower(Tower):
    """A vision config with window attention in most layers."""

    depth: int = 32
    hidden_size: int = 3584
    intermediate_size: int = 3420
    num_heads: int = 16
    out_hidden_size: int = 3584
    patch_size: int = 14
    window_size: int = 112
    fullatt_block_indexes: tuple[int, ...] = (7, 15, 23, 31)
    tokens_per_second: int = 4

    @property
    def window(self) -> int:
        """The side of a window, in rows of the language model."""
        return self.window_size // self.spatial_merge_size // self.patch_size

    def check(self) -> None:
        super().check()
        if self.window < 1:
            raise ConfigError(
                f"vision_config: window_size={self.window_size} is smaller than a patch"
            )


@dataclass(frozen=True, kw_only=True)
class SightedConfig(ModelConfig):
    """Text and vision config. Files before transformers 5 have the text config at the top level."""

    text: RopeConfig
    vision: Tower
    tie_word_embeddings: bool = False
    image_token_id: int = 151655
    video_token_id: int = 151656
    vision_start_token_id: int = 151652
    vision_end_token_id: int = 151653

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], *, allow: Sequence[str] = ()) -> Self:
        """As `ModelConfig.from_hf`, for both parts."""
        whole = {**raw, "model_type": f"{raw.get('model_type')}_text"}
        parts = {
            "text": raw.get("text", raw.get("text_config")) or whole,
            "vision": raw.get("vision", raw.get("vision_config")) or {},
        }
        for name, part in parts.items():
            if not isinstance(part, Mapping):
                raise ConfigError(f"config.json: {name}_config={part!r:.80} is not an object")
            known = {f.name for f in fields(get_type_hints(cls)[name])}
            # Files that omit the others state these elsewhere.
            omitted = known - {"rope_parameters", "tie_word_embeddings"}
            defaults = reference_defaults(part.get("model_type", ""), derived=False)
            parts[name] = {
                **{key: defaults[key] for key in omitted if key in defaults},
                **{k: v for k, v in part.items() if k in known or k not in allow},
            }
        parts["vision"].pop("tie_word_embeddings", None)  # a vision encoder has no head
        tied = raw.get("tie_word_embeddings", parts["text"].get("tie_word_embeddings", False))
        parts["text"]["tie_word_embeddings"] = tied
        rest = {k: v for k, v in raw.items() if k not in ("text_config", "vision_config")}
        return super().from_hf({**rest, **parts, "tie_word_embeddings": tied}, allow=allow)

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        return super().derive(raw, values) | {"vocab_size": values["text"].vocab_size}

    @property
    def max_position_embeddings(self) -> int:
        return self.text.max_position_embeddings

    @property
    def context_limit(self) -> int:
        return self.text.context_limit

    @property
    def num_hidden_layers(self) -> int:
        return self.text.num_hidden_layers

    def check(self) -> None:
        super().check()
        if self.vision.out_hidden_size != self.text.hidden_size:
            raise ConfigError(
                f"vision_config: out_hidden_size={self.vision.out_hidden_size}, but the text has "
                f"hidden_size={self.text.hidden_size}"
            )


@dataclass(frozen=True, kw_only=True)
class Config(SightedConfig):
    text: Text
    vision: WindowTower
