"""Qwen2-Audio: Qwen2 with Whisper's encoder, pooled by two rows (Chu et al. 2024).

Reference class Qwen2AudioForConditionalGeneration of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from ostro import Medium, Names, Pair, Step, nn
from ostro.architectures.qwen2 import model as qwen2
from ostro.architectures.whisper.encoder import Encoder, EncoderConfig, layer_pairs
from ostro.config import ModelConfig
from ostro.errors import ConfigError

QWEN2 = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 32768,
}
"""The defaults of Qwen2Config, which files omit from text_config."""


@dataclass(frozen=True, kw_only=True)
class AudioConfig(EncoderConfig):
    num_mel_bins: int = 128


@dataclass(frozen=True, kw_only=True)
class Config(ModelConfig):
    text: qwen2.Config
    audio: AudioConfig
    audio_token_index: int = 151646

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], *, allow: Sequence[str] = ()) -> Self:
        """As `ModelConfig.from_hf`, for both parts."""
        text, audio = raw.get("text_config") or {}, raw.get("audio_config") or {}
        if not isinstance(text, Mapping) or not isinstance(audio, Mapping):
            raise ConfigError("config.json: text_config or audio_config is not an object")
        token = raw.get("audio_token_index", raw.get("audio_token_id", cls.audio_token_index))
        if not isinstance(token, int):
            raise ConfigError(f"audio_token_index={token!r:.80} is not a token id")
        words = qwen2.Config.from_hf({**QWEN2, **text}, allow=allow)
        sound = AudioConfig.from_hf(audio, allow=allow)
        config = cls(vocab_size=words.vocab_size, text=words, audio=sound, audio_token_index=token)
        config.check()
        return config

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
        if not 0 <= self.audio_token_index < self.vocab_size:
            raise ConfigError(
                f"audio_token_index={self.audio_token_index} is not within 0..{self.vocab_size - 1}"
            )


class Tower(Encoder):
    def pool(self, x: Tensor) -> Tensor:
        """The mean of every two rows; an odd last row is dropped."""
        return x[: len(x) // 2 * 2].unflatten(0, (-1, 2)).mean(1)


class Projector(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.linear = nn.Linear(config.audio.d_model, config.text.hidden_size, bias=True)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        return self.linear(x, step)


class Model(qwen2.Model):
    layers = ("audio_tower.layers", "model.layers")

    def __init__(self, config: Config) -> None:
        super().__init__(config.text)
        self.audio_tower = Tower(config.audio)
        self.multi_modal_projector = Projector(config)

    def encode(self, media: Sequence[Medium], step: Step) -> list[tuple[Tensor, ...]]:
        """Media hold `spectrum` [num_mel_bins, frames]: 2 n + 1 frames for n rows of audio, since
        the last row depends on the next frame, or 2 n at the end of the window.
        """
        spectra = [medium.arrays["spectrum"] for medium in media]
        rows = [spectrum.shape[1] // 2 for spectrum in spectra]
        states = self.audio_tower(spectra, step, rows)
        return [(self.multi_modal_projector(x, step),) for x in states]

    def embed(self, step: Step) -> Tensor:
        x = super().embed(step)
        if step.features is None:
            return x
        return x.index_copy(0, step.features.rows, step.features.values)


def names(config: Config) -> Names:
    """Checkpoints have the parts at the top level, the module tree of transformers 5 below
    `model`.
    """
    layer = "audio_tower.layers.{i}"
    pairs = (
        pair
        for root in ("", "model.")
        for pair in (
            *layer_pairs(root + layer, layer),
            Pair(f"{root}audio_tower", "audio_tower"),
            Pair(f"{root}multi_modal_projector", "multi_modal_projector"),
        )
    )
    text = (
        Pair("language_model.model.model", "model"),  # as transformers 5.17 saves it
        Pair("language_model.model", "model"),
        Pair("language_model.lm_head", "lm_head"),
        Pair("model.language_model", "model"),
    )
    return Names(hub=(*pairs, *text))
