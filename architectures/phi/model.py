"""Phi: a decoder with layer norms, biases and an ungated MLP beside the attention.

`Block`, `Decoder` and `TrunkModel` are also those of families whose attention and MLP follow each
other, each after a norm of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ostro import Step, nn
from ostro.config import TextConfig
from ostro.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class LayerNormConfig(TextConfig):
    """The settings of the trunk, whose keys in config.json differ between families."""

    @property
    def norm_eps(self) -> float:
        """The epsilon of the layer norms."""
        return self.rms_norm_eps

    @property
    def bias(self) -> bool:
        """Whether the linears of attention and MLP have a bias."""
        return True

    @property
    def head_bias(self) -> bool:
        """Whether the head has a bias."""
        return False

    def check(self) -> None:
        super().check()
        if not (math.isfinite(self.norm_eps) and 0 <= self.norm_eps < 1):
            raise ConfigError(f"the epsilon of the layer norms, {self.norm_eps}, is not in 0..1")
        if self.tie_word_embeddings and self.head_bias:
            raise ConfigError("tie_word_embeddings=true with a bias of the head is not implemented")


@dataclass(frozen=True, kw_only=True)
class Config(LayerNormConfig):
    hidden_act: str = "gelu_new"
    layer_norm_eps: float = 1e-5
    qk_layernorm: bool = False

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        values = super().derive(raw, values)
        values["rope_parameters"].setdefault("partial_rotary_factor", 0.5)
        return values

    @property
    def norm_eps(self) -> float:
        return self.layer_norm_eps

    @property
    def head_bias(self) -> bool:
        return True


def norm(config: LayerNormConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, config.norm_eps)


class Block(nn.Module):
    """A pre-norm block; x and the residual are separate, so that a norm can fuse their addition.

    A `parallel` block has one norm, whose output both attention and MLP read.
    """

    parallel: ClassVar[bool] = False

    def __init__(self, config: LayerNormConfig, layer: int, rope: nn.Rope) -> None:
        super().__init__()
        self.input_layernorm = norm(config)
        self.self_attn = self.attention(config, layer, rope)
        self.post_attention_layernorm = None if self.parallel else norm(config)
        self.mlp = self.feed_forward(config, layer)

    @staticmethod
    def rope(config: LayerNormConfig) -> nn.Rope:
        """The rope that all layers share."""
        return nn.Rope(config.rope_parameters, config.head_dim, config.max_position_embeddings)

    def attention(self, config: LayerNormConfig, layer: int, rope: nn.Rope) -> nn.Module:
        bias, window = config.bias, config.window(layer)
        return nn.Attention(config, layer, rope, bias=bias, out_bias=bias, window=window)

    def feed_forward(self, config: LayerNormConfig, layer: int) -> nn.Module:
        hidden, act = config.intermediate_size, config.hidden_act
        return nn.MLP(config.hidden_size, hidden, act, bias=config.bias)

    def forward(self, x: Tensor, residual: Tensor | None, step: Step) -> tuple[Tensor, Tensor]:
        x, residual = self.input_layernorm(x, residual)
        if self.post_attention_layernorm is None:
            return self.self_attn(x, step) + self.mlp(x, step), residual
        x, residual = self.post_attention_layernorm(self.self_attn(x, step), residual)
        return self.mlp(x, step), residual


class Attention(nn.Attention):
    """Attention with biases and, optionally, a layer norm on each head of q and k."""

    def __init__(self, config: Config, layer: int, rope: nn.Rope) -> None:
        super().__init__(config, layer, rope, bias=True, out_bias=True)
        d, eps, normed = config.head_dim, config.layer_norm_eps, config.qk_layernorm
        self.q_layernorm = nn.LayerNorm(d, eps) if normed else None
        self.k_layernorm = nn.LayerNorm(d, eps) if normed else None

    def rotate_and_write(self, q: Tensor, k: Tensor, v: Tensor, step: Step) -> Tensor:
        if self.q_layernorm is not None and self.k_layernorm is not None:
            q, k = self.q_layernorm(q)[0], self.k_layernorm(k)[0]
        return super().rotate_and_write(q, k, v, step)


class PhiBlock(Block):
    parallel = True

    def attention(self, config: Config, layer: int, rope: nn.Rope) -> nn.Module:
        return Attention(config, layer, rope)


class Decoder(nn.Module):
    def __init__(self, config: LayerNormConfig, block: type[Block]) -> None:
        super().__init__()
        d, count = config.hidden_size, config.num_hidden_layers
        self.embed_tokens = nn.Embedding(config.vocab_size, d)
        rope = block.rope(config)
        self.layers = nn.ModuleList(block(config, i, rope) for i in range(count))
        self.norm = norm(config)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        residual = None
        for layer in self.layers:
            x, residual = layer(x, residual, step)
        return self.norm(x, residual)[0]


class TrunkModel(nn.TokenModel):
    block: ClassVar[type[Block]] = Block

    def __init__(self, config: LayerNormConfig) -> None:
        super().__init__()
        self.model = Decoder(config, self.block)
        tied = self.model.embed_tokens if config.tie_word_embeddings else None
        d, bias = config.hidden_size, config.head_bias
        self.lm_head = nn.Head(d, config.vocab_size, tied=tied, bias=bias)

    def embed(self, step: Step) -> Tensor:
        return self.model.embed_tokens(step.tokens, step)

    def hidden(self, step: Step) -> Tensor:
        return self.model(self.embed(step), step)

    def logits(self, hidden: Tensor, step: Step) -> Tensor:
        return self.lm_head(hidden, step)


class Model(TrunkModel):
    block = PhiBlock
