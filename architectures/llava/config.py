"""The config of a decoder with a vision encoder: two configs in one file."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self, get_type_hints

from ostro.config import ModelConfig, TextConfig, reference_defaults
from ostro.errors import ConfigError

ELSEWHERE = {"rope_parameters", "tie_word_embeddings"}
"""Keys of a part that older files state elsewhere."""


@dataclass(frozen=True, kw_only=True)
class SightedConfig(ModelConfig):
    """`text_config` and `vision_config` of a file; `families` are their default model types.

    A family with several text or vision models overrides `kinds` and `kind`.
    `image_token_index` is the placeholder of images; `image_seq_length`, the rows of an image,
    follows from the vision config.
    """

    families: ClassVar[Mapping[str, str]]
    text: TextConfig
    vision: ModelConfig
    image_token_index: int
    image_seq_length: int = 576
    tie_word_embeddings: bool = False

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], *, allow: Sequence[str] = ()) -> Self:
        """As `ModelConfig.from_hf`, for both parts."""
        parts: dict[str, Any] = {name: cls.part(name, raw, allow) for name in ("text", "vision")}
        tied = raw.get("tie_word_embeddings")
        if tied is not None:
            parts["text"] = {"tie_word_embeddings": tied, **parts["text"]}
        parts["vision"].pop("tie_word_embeddings", None)  # a vision encoder has no head
        for name in parts:
            parts[name] = cls.kind(name, raw).from_hf(parts[name])
        rest = {k: v for k, v in raw.items() if k not in ("text_config", "vision_config")}
        if "image_token_id" in raw:
            rest["image_token_index"] = raw["image_token_id"]
        return super().from_hf({**rest, **parts}, allow=allow)

    @classmethod
    def model_type(cls, name: str, raw: Mapping[str, Any]) -> Any:
        """The model_type of a part of the file."""
        part = raw.get(name, raw.get(f"{name}_config"))
        if not isinstance(part, Mapping):
            raise ConfigError(f"config.json: {name}_config={part!r:.80} is not an object")
        return part.get("model_type", cls.families[name])

    @classmethod
    def kinds(cls, name: str) -> Collection[str]:
        """The implemented model types of a part."""
        return (cls.families[name],)

    @classmethod
    def kind(cls, name: str, raw: Mapping[str, Any]) -> type[ModelConfig]:
        """The config class of a part."""
        found: type[ModelConfig] = get_type_hints(cls)[name]
        return found

    @classmethod
    def part(cls, name: str, raw: Mapping[str, Any], allow: Sequence[str]) -> dict[str, Any]:
        """One of the two configs, with the defaults of transformers for the keys that it omits."""
        family = cls.model_type(name, raw)
        if not isinstance(family, str) or family not in cls.kinds(name):
            raise ConfigError(
                f"config.json: {name}_config is of model_type={family!r:.80}, which "
                f"{cls.__module__} does not implement; expected {' or '.join(cls.kinds(name))}"
            )
        part = raw.get(name, raw.get(f"{name}_config")) or {}
        names = {f.name for f in fields(cls.kind(name, raw))}
        defaults = reference_defaults(family, derived=False) if names - part.keys() else {}
        return {
            **{key: defaults[key] for key in names - ELSEWHERE if key in defaults},
            **{key: value for key, value in part.items() if key in names or key not in allow},
        }

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        text = values["text"]
        shared = {"vocab_size": text.vocab_size, "tie_word_embeddings": text.tie_word_embeddings}
        return super().derive(raw, values) | shared

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
        if not 0 <= self.image_token_index < self.vocab_size:
            raise ConfigError(
                f"image_token_index={self.image_token_index} is not within 0..{self.vocab_size - 1}"
            )
