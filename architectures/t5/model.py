"""T5's encoder: pre-norm, unscaled attention with a learned bias by relative position.

Raffel et al. 2020, v1.1 after Shazeer 2020; reference class T5EncoderModel of transformers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro import Step, nn
from ostro.config import ModelConfig, check_sizes
from ostro.errors import ConfigError
from ostro.ops import equal_length_runs

GATED = {"gated-gelu": "gelu_new"}
PLAIN = {"relu": "relu"}


@dataclass(frozen=True, kw_only=True)
class Config(ModelConfig):
    """The fields of T5Config. Those in the second half do not affect the encoder, or follow from
    others.
    """

    vocab_size: int = 32128
    d_model: int = 512
    d_kv: int = 64
    d_ff: int = 2048
    num_layers: int = 6
    num_heads: int = 8
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    layer_norm_epsilon: float = 1e-6
    feed_forward_proj: str = "relu"

    num_decoder_layers: int | None = None
    dropout_rate: float = 0.1
    classifier_dropout: float = 0.0
    initializer_factor: float = 1.0
    dense_act_fn: str = ""
    is_gated_act: bool = False
    scale_decoder_outputs: bool = True
    tie_word_embeddings: bool = True

    def check(self) -> None:
        super().check()
        check_sizes(self, "vocab_size d_model d_kv d_ff num_layers num_heads")
        if self.feed_forward_proj not in {*GATED, *PLAIN}:
            known = ", ".join((*GATED, *PLAIN))
            raise ConfigError(
                f"feed_forward_proj={self.feed_forward_proj!r} is not implemented; expected {known}"
            )
        if not 0 <= self.layer_norm_epsilon < 1:
            raise ConfigError(f"layer_norm_epsilon={self.layer_norm_epsilon} is not within 0..1")
        buckets, longest = self.relative_attention_num_buckets, self.relative_attention_max_distance
        if buckets < 4 or longest <= buckets // 4:
            raise ConfigError(
                f"relative_attention_num_buckets={buckets} and relative_attention_max_distance="
                f"{longest} leave no bucket for distant positions"
            )


@dataclass(frozen=True)
class TextRun:
    """Rows start..stop, texts of one length; bias [heads, length, length] is added to scores."""

    start: int
    stop: int
    length: int
    bias: Tensor


class RelativeBias(nn.Module):
    """A learned bias per head and bucket of relative positions, shared by all layers."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.buckets = config.relative_attention_num_buckets
        self.longest = config.relative_attention_max_distance
        table = torch.zeros(self.buckets, config.num_heads)
        self.weight = nn.Parameter(table, requires_grad=False)

    def forward(self, length: int) -> Tensor:
        """The bias of a text of `length` rows: [heads, length, length] float32."""
        place = torch.arange(length, device=self.weight.device)
        return self.weight[self.bucket(place - place[:, None])].permute(2, 0, 1)

    def bucket(self, distance: Tensor) -> Tensor:
        """The buckets of distances key - query: half of them for later keys; in each half one per
        near distance, and logarithmic ones up to `longest`.
        """
        half = self.buckets // 2
        exact = half // 2
        far = distance.abs().clamp(min=1).float() / exact
        steps = (far.log() / math.log(self.longest / exact) * (half - exact)).long()
        large = (exact + steps).clamp(max=half - 1)
        within = torch.where(distance.abs() < exact, distance.abs(), large)
        return within + half * (distance > 0)


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        d, self.heads = config.d_model, config.num_heads
        inner = self.heads * config.d_kv
        self.qkv = nn.Linear(d, {"q": inner, "k": inner, "v": inner})
        self.o = nn.Linear(inner, d, shard="rowwise")

    def forward(self, x: Tensor, runs: Sequence[TextRun], step: Step) -> Tensor:
        qkv = self.qkv(x, step).view(len(x), 3, self.heads, -1)
        return self.o(torch.cat([attend(qkv[run.start : run.stop], run) for run in runs]), step)


def attend(qkv: Tensor, run: TextRun) -> Tensor:
    """qkv [n * length, 3, heads, d] of texts of one length -> [n * length, heads * d]."""
    q, k, v = qkv.unflatten(0, (-1, run.length)).permute(2, 0, 3, 1, 4)
    bias = run.bias.to(q.dtype).expand(len(q), -1, -1, -1)
    # T5's weights include the scale
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
    return y.transpose(1, 2).flatten(2).flatten(0, 1)


class MLP(nn.Module):
    """wo(relu(wi(x)))."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.wi = nn.Linear(config.d_model, config.d_ff)
        self.wo = nn.Linear(config.d_ff, config.d_model, shard="rowwise")

    def forward(self, x: Tensor, step: Step) -> Tensor:
        return self.wo(F.relu(self.wi(x, step)), step)


class Layer(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        d, eps, act = config.d_model, config.layer_norm_epsilon, GATED.get(config.feed_forward_proj)
        self.attention_norm = nn.RMSNorm(d, eps)
        self.attention = Attention(config)
        self.mlp_norm = nn.RMSNorm(d, eps)
        self.mlp = nn.GatedMLP(d, config.d_ff, act) if act else MLP(config)

    def forward(self, x: Tensor, runs: Sequence[TextRun], step: Step) -> Tensor:
        x = saturate(x + self.attention(self.attention_norm(x)[0], runs, step))
        return saturate(x + self.mlp(self.mlp_norm(x)[0], step))


def saturate(x: Tensor) -> Tensor:
    """Clamp to the range of float16, which the states exceed: T5 was trained in bfloat16."""
    return x.clamp(-65504, 65504) if x.dtype == torch.float16 else x


class Encoder(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.bias = RelativeBias(config)
        self.norm = nn.RMSNorm(config.d_model, config.layer_norm_epsilon)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        found = [TextRun(*run, self.bias(run[2])) for run in equal_length_runs(step.bounds)]
        for layer in self.layers:
            x = layer(x, found, step)
        return self.norm(x)[0]


class Model(nn.EncoderModel):
    layers = ("encoder.layers",)

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.shared = nn.Embedding(config.vocab_size, config.d_model)
        self.encoder = Encoder(config)

    def embed(self, step: Step) -> Tensor:
        return self.shared(step.tokens, step)

    def hidden(self, step: Step) -> Tensor:
        return self.encoder(self.embed(step), step)
