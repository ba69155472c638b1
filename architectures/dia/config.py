"""Dia's configs: text encoder, decoder of codes, and codec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from math import prod
from typing import Any, Self

from ostro.config import ModelConfig, TextConfig, check_sizes
from ostro.errors import ConfigError

SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")
TRAINING = (
    "commitment_loss_weight codebook_loss_weight quantizer_dropout frame_rate hidden_size "
    "hop_length upsampling_ratios"
).split()
"""Keys of a codec on training, or that follow from others."""


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(TextConfig):
    """The config of DiaEncoder; defaults are those of Dia 1.6B."""

    vocab_size: int = 256
    hidden_size: int = 1024
    intermediate_size: int = 4096
    num_hidden_layers: int = 12
    num_attention_heads: int = 16
    num_key_value_heads: int = 16
    head_dim: int = 128
    max_position_embeddings: int = 1024
    norm_eps: float = 1e-5

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        usual = {f.name: f.default for f in fields(cls) if f.default is not MISSING}
        return super().derive(raw, {**usual, **values})


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(EncoderConfig):
    """The config of DiaDecoder. Ids below `eos_token_id` are codes, the others special."""

    vocab_size: int = 1028
    hidden_size: int = 2048
    intermediate_size: int = 8192
    num_hidden_layers: int = 18
    num_key_value_heads: int = 4
    max_position_embeddings: int = 3072
    cross_num_attention_heads: int = 16
    cross_num_key_value_heads: int = 16
    cross_head_dim: int = 128
    cross_hidden_size: int = 1024
    num_channels: int = 9
    eos_token_id: int = 1024
    pad_token_id: int = 1025
    bos_token_id: int = 1026

    def check(self) -> None:
        super().check()
        check_sizes(
            self,
            "cross_num_attention_heads cross_num_key_value_heads cross_head_dim cross_hidden_size "
            "num_channels eos_token_id",
        )
        if self.cross_num_attention_heads % self.cross_num_key_value_heads:
            raise ConfigError(
                f"cross_num_attention_heads={self.cross_num_attention_heads} is not a multiple of "
                f"cross_num_key_value_heads={self.cross_num_key_value_heads}"
            )
        for name in SPECIAL:
            if not self.eos_token_id <= getattr(self, name) < self.vocab_size:
                raise ConfigError(
                    f"{name}={getattr(self, name)} is not within eos_token_id={self.eos_token_id}.."
                    f"{self.vocab_size - 1}"
                )


@dataclass(frozen=True, kw_only=True)
class CodecConfig(ModelConfig):
    """The config of DacModel; defaults are those of the codec for 16 kHz."""

    encoder_hidden_size: int = 64
    downsampling_ratios: tuple[int, ...] = (2, 4, 8, 8)
    decoder_hidden_size: int = 1536
    n_codebooks: int = 9
    codebook_size: int = 1024
    codebook_dim: int = 8
    sampling_rate: int = 16000

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], *, allow: Sequence[str] = ()) -> Self:
        return super().from_hf(raw, allow=(*allow, *TRAINING))

    @property
    def latent_size(self) -> int:
        return self.encoder_hidden_size << len(self.downsampling_ratios)

    @property
    def hop(self) -> int:
        """Samples per frame."""
        return prod(self.downsampling_ratios)

    def check(self) -> None:
        super().check()
        check_sizes(
            self,
            "encoder_hidden_size decoder_hidden_size n_codebooks codebook_size codebook_dim "
            "sampling_rate",
        )
        ratios = self.downsampling_ratios
        if not ratios or any(not 0 < ratio < 1024 or ratio % 2 for ratio in ratios):
            raise ConfigError(
                f"downsampling_ratios={list(ratios)} are not even, and within 2..1022"
            )
        if self.decoder_hidden_size % (1 << len(ratios)):
            raise ConfigError(
                f"decoder_hidden_size={self.decoder_hidden_size} cannot be halved {len(ratios)} "
                "times, once for each of downsampling_ratios"
            )


@dataclass(frozen=True, kw_only=True)
class Config(ModelConfig):
    """The config of DiaForConditionalGeneration, and of the codec, from another folder.

    delay_pattern: the delay of each channel relative to the first, in frames.
    """

    encoder_config: EncoderConfig = field(default_factory=EncoderConfig)
    decoder_config: DecoderConfig = field(default_factory=DecoderConfig)
    codec: CodecConfig
    delay_pattern: tuple[int, ...] = (0, 8, 9, 10, 11, 12, 13, 14, 15)

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        values = super().derive(raw, values)
        # early files have the special ids here instead of in the decoder's config
        marks = {name: raw[name] for name in SPECIAL if isinstance(raw.get(name), int)}
        if marks:
            values["decoder_config"] = replace(
                values.get("decoder_config", DecoderConfig()), **marks
            )
        return values

    @property
    def max_position_embeddings(self) -> int:
        """The larger context of encoder and decoder; each has its own limit."""
        sides = self.encoder_config, self.decoder_config
        return max(side.max_position_embeddings for side in sides)

    def check(self) -> None:
        super().check()
        decoder, delays = self.decoder_config, self.delay_pattern
        decoder.check()
        for ours, theirs, what in (
            (decoder.cross_hidden_size, self.encoder_config.hidden_size, "the encoder's channels"),
            (decoder.num_channels, len(delays), "the delays of delay_pattern"),
            (decoder.num_channels, self.codec.n_codebooks, "the codebooks of the codec"),
            (decoder.eos_token_id, self.codec.codebook_size, "the codes of a codebook"),
        ):
            if ours != theirs:
                raise ConfigError(f"the decoder has {ours}, expected {theirs}, {what}")
        longest = decoder.max_position_embeddings - 2
        if delays[0] != 0 or not all(0 <= delay < longest for delay in delays):
            raise ConfigError(
                f"delay_pattern={list(delays)} does not begin with 0 and stay within 0..{longest}"
            )
