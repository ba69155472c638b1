"""Idefics 2's config: those of the text, the vision encoder and the resampler."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from ostro.architectures.clip.vision import MAX_LAYERS
from ostro.architectures.llava.config import SightedConfig
from ostro.architectures.mistral import config as mistral
from ostro.architectures.siglip import model as siglip
from ostro.config import ModelConfig, check_sizes
from ostro.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Vision(siglip.Config):
    """The vision config; `image_size` sets the rows of the table of positions only."""

    patch_size: int = 32


@dataclass(frozen=True, kw_only=True)
class Perceiver(ModelConfig):
    """The config of the resampler, with transformers' names."""

    hidden_act: str = "silu"
    hidden_size: int = 4096
    rms_norm_eps: float = 1e-6
    resampler_n_latents: int = 64
    resampler_depth: int = 3
    resampler_n_heads: int = 16
    resampler_head_dim: int = 96
    num_key_value_heads: int = 4

    def check(self) -> None:
        super().check()
        check_sizes(
            self,
            "hidden_size resampler_n_latents resampler_depth resampler_n_heads resampler_head_dim "
            "num_key_value_heads",
            where="perceiver_config: ",
        )
        if self.resampler_n_heads % self.num_key_value_heads:
            raise ConfigError(
                f"perceiver_config: num_key_value_heads={self.num_key_value_heads} does not divide "
                f"resampler_n_heads={self.resampler_n_heads}"
            )
        if self.resampler_depth > MAX_LAYERS:
            raise ConfigError(
                f"perceiver_config: resampler_depth={self.resampler_depth} exceeds {MAX_LAYERS}"
            )
        if not 0 <= self.rms_norm_eps < 1:
            raise ConfigError(f"perceiver_config: rms_norm_eps={self.rms_norm_eps} is not 0..1")


@dataclass(frozen=True, kw_only=True)
class Config(SightedConfig):
    families: ClassVar[Mapping[str, str]] = {"text": "mistral", "vision": "idefics2_vision"}
    text: mistral.Config
    vision: Vision
    perceiver: Perceiver
    image_token_index: int = 32001
    image_token_id: int = 32001

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], *, allow: Sequence[str] = ()) -> Self:
        """As the base class; a resampler of another width than the text has the text's."""
        id = raw.get("image_token_id", cls.image_token_id)
        if type(id) is not int:
            raise ConfigError(f"image_token_id={id!r:.80} is not an integer")
        part = raw.get("perceiver", raw.get("perceiver_config")) or {}
        if not isinstance(part, Mapping):
            raise ConfigError(f"config.json: perceiver_config={part!r:.80} is not an object")
        stated = {name: value for name, value in part.items() if name != "model_type"}
        perceiver = Perceiver.from_hf(stated, allow=allow)
        rest = {name: value for name, value in raw.items() if name != "perceiver_config"}
        return super().from_hf({**rest, "perceiver": perceiver}, allow=allow)

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        values = super().derive(raw, values)
        text, perceiver = values["text"], values["perceiver"]
        if perceiver.hidden_size != text.hidden_size:
            width, eps = text.hidden_size, text.rms_norm_eps
            values["perceiver"] = replace(perceiver, hidden_size=width, rms_norm_eps=eps)
        return values

    @classmethod
    def kinds(cls, name: str) -> Collection[str]:
        """Published files have the model type of the whole model in the vision config."""
        return ("mistral",) if name == "text" else ("idefics2_vision", "idefics2")
