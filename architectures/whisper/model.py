"""Whisper: speech recognition with an encoder and a decoder (Radford et al. 2022)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from ostro import JobRequest, Medium, Names, Pair, Slice, Step, nn
from ostro.architectures.whisper.alignment import Transcript, attend, attend_across, combine
from ostro.architectures.whisper.encoder import (
    EPS,
    STRIDE,
    Encoder,
    EncoderConfig,
    layer_pairs,
    projections,
)
from ostro.config import TextConfig, check_type
from ostro.errors import ConfigError, RequestError

GENERATION = ("decoder_layerdrop suppress_tokens begin_suppress_tokens forced_decoder_ids").split()
"""Keys on training and generation."""

RENAMED = {
    "hidden_size": "d_model",
    "intermediate_size": "decoder_ffn_dim",
    "num_hidden_layers": "decoder_layers",
    "num_attention_heads": "decoder_attention_heads",
    "max_position_embeddings": "max_target_positions",
}
"""The decoder's sizes: names of text configs, and Whisper's names."""


@dataclass(frozen=True, kw_only=True)
class Config(EncoderConfig, TextConfig):
    """`median_filter_width`: encoder rows of the filter that smooths alignments."""

    d_model: int
    num_mel_bins: int = 80
    encoder_layers: int
    encoder_attention_heads: int
    encoder_ffn_dim: int
    max_position_embeddings: int = 448
    tie_word_embeddings: bool = True
    median_filter_width: int = 7

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], *, allow: Sequence[str] = ()) -> Self:
        for theirs in RENAMED.values():
            check_type(theirs, raw.get(theirs, 0), int)
        ours = {name: raw[theirs] for name, theirs in RENAMED.items() if theirs in raw}
        kept = {key: value for key, value in raw.items() if key not in ("head_dim", *RENAMED)}
        return super().from_hf({**kept, **ours}, allow=(*allow, *GENERATION, *RENAMED.values()))

    def check(self) -> None:
        super().check()
        width = self.median_filter_width
        if width < 1 or width % 2 == 0:
            raise ConfigError(f"median_filter_width={width} is not an odd number above 0")


class Attention(nn.Attention):
    def __init__(self, config: Config, layer: int) -> None:
        super().__init__(config, layer, None, out_bias=True)
        self.qkv = projections(config.hidden_size)


class DecoderLayer(nn.Module):
    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        d, heads = config.hidden_size, config.num_attention_heads
        behind = config.num_hidden_layers + layer
        self.self_attn_layer_norm = nn.LayerNorm(d, EPS)
        self.self_attn = Attention(config, layer)
        self.encoder_attn_layer_norm = nn.LayerNorm(d, EPS)
        self.encoder_attn = nn.CrossAttention(
            d, heads, behind, length=config.max_source_positions, k_bias=False
        )
        self.final_layer_norm = nn.LayerNorm(d, EPS)
        self.mlp = nn.MLP(d, config.intermediate_size)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        y = self.self_attn(self.self_attn_layer_norm(x)[0], step)
        y, x = self.encoder_attn_layer_norm(y, x)
        y, x = self.final_layer_norm(self.encoder_attn(y, step), x)
        return x + self.mlp(y, step)

    def align(self, x: Tensor, states: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """The forward pass of one whole sequence without caches.

        x [T, d], encoder states [S, d] -> [T, d], weights of the cross attention [heads, T, S].
        """
        y = self.self_attn_layer_norm(x)[0]
        y, x = self.encoder_attn_layer_norm(attend(self.self_attn, y, step), x)
        y, weights = attend_across(self.encoder_attn, y, states, step)
        y, x = self.final_layer_norm(y, x)
        return x + self.mlp(y, step), weights


class Decoder(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        d = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, d)
        self.embed_positions = nn.Embedding(config.max_position_embeddings, d)
        self.layers = nn.ModuleList(
            DecoderLayer(config, i) for i in range(config.num_hidden_layers)
        )
        self.layer_norm = nn.LayerNorm(d, EPS)

    def embed(self, step: Step) -> Tensor:
        places = self.embed_positions(step.positions[0], step)
        return self.embed_tokens(step.tokens, step) + places

    def forward(self, x: Tensor, step: Step) -> Tensor:
        for layer in self.layers:
            x = layer(x, step)
        return self.layer_norm(x)[0]

    def align(
        self, tokens: Sequence[int], states: Tensor, heads: Sequence[Sequence[int]], step: Step
    ) -> Tensor:
        """The cross-attention weights of heads, (layer, head) each: [heads, T, S] float32."""
        ids = torch.tensor(tokens, device=states.device)
        places = torch.arange(len(tokens), device=states.device)
        x = self.embed(replace(step, tokens=ids, positions=places[None]))
        found = list[Tensor]()
        for layer in self.layers[: 1 + max(layer for layer, _ in heads)]:
            x, weights = layer.align(x, states, step)
            found.append(weights)
        return torch.stack([found[layer][head] for layer, head in heads])


class Model(nn.TokenModel, nn.JobModel):
    """Generates tokens; a job aligns them with their audio."""

    layers = ("model.encoder.layers", "model.decoder.layers")

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config, self.frames = config, STRIDE * config.max_source_positions
        self.model = nn.Module()
        self.model.encoder = Encoder(config)
        self.model.decoder = Decoder(config)
        tied = self.model.decoder.embed_tokens if config.tie_word_embeddings else None
        self.proj_out = nn.Head(config.hidden_size, config.vocab_size, tied=tied)

    def encode(self, media: Sequence[Medium], step: Step) -> list[tuple[Tensor, ...]]:
        """Media hold `spectrum` [num_mel_bins, 2 * max_source_positions]."""
        spectra = [medium.arrays["spectrum"] for medium in media]
        for spectrum in spectra:
            if spectrum.shape[1] != self.frames:
                raise RequestError(
                    f"a spectrogram of {spectrum.shape[1]} frames, expected {self.frames}"
                )
        return [(states,) for states in self.model.encoder(spectra, step)]

    def write_states(self, states: Tensor, step: Step) -> None:
        for layer in self.model.decoder.layers:
            layer.encoder_attn.write_states(states, step)

    def embed(self, step: Step) -> Tensor:
        return self.model.decoder.embed(step)

    def hidden(self, step: Step) -> Tensor:
        return self.model.decoder(self.embed(step), step)

    def logits(self, hidden: Tensor, step: Step) -> Tensor:
        return self.proj_out(hidden, step)

    def work(self, request: JobRequest, step: Step) -> Iterator[Slice]:
        """Align a transcript with its audio.

        The request's values are the fields of `Transcript`, its array "spectrum" is that of
        `encode`. The result "alignment" [tokens, rows] float32 is high where a token is spoken.
        """
        transcript = Transcript(**request.values)
        transcript.check(self.config)
        encoder: Any = self.model.encoder
        decoder: Any = self.model.decoder
        device, dtype = encoder.conv1.weight.device, decoder.embed_tokens.active_storages[0].dtype
        spectrum = torch.from_numpy(request.arrays["spectrum"].numpy().copy()).to(device, dtype)
        [(states,)] = self.encode([Medium("audio", {"spectrum": spectrum})], step)
        yield Slice(done=1, total=2)
        weights = decoder.align(transcript.all_tokens, states, transcript.heads, step)
        weights = weights[:, len(transcript.context) :, : transcript.rows]
        matrix = combine(weights, self.config.median_filter_width)
        yield Slice(done=2, total=2, arrays={"alignment": matrix})


def names(config: Config) -> Names:
    side = "model.{side}.layers.{i}"
    cross = "model.decoder.layers.{i}.encoder_attn"
    return Names(
        hub=(*layer_pairs(side, side), Pair(f"{cross}.out_proj", f"{cross}.o_proj")),
    )
