"""Llama: pre-norm decoder, grouped-query attention with rotary positions, gated MLP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ostro import Step, nn
from ostro.config import TextConfig


@dataclass(frozen=True, kw_only=True)
class Config(TextConfig):
    attention_bias: bool = False
    mlp_bias: bool = False


class Block(nn.Module):
    """A pre-norm block; x and the residual are separate, so that a norm can fuse their addition."""

    def __init__(self, config: Config, layer: int, rope: nn.Rope) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = self.attention(config, layer, rope)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = self.feed_forward(config, layer)

    @staticmethod
    def rope(config: Config) -> nn.Rope:
        """The rope that all layers share."""
        return nn.Rope(config.rope_parameters, config.head_dim, config.max_position_embeddings)

    @classmethod
    def ropes(cls, config: Config) -> Sequence[nn.Rope]:
        """The rope of each layer."""
        return [cls.rope(config)] * config.num_hidden_layers

    def attention(self, config: Config, layer: int, rope: nn.Rope, **more: Any) -> nn.Module:
        """The attention of a layer; subclasses pass further keywords of nn.Attention as `more`."""
        bias, window = config.attention_bias, config.window(layer)
        return nn.Attention(config, layer, rope, bias=bias, out_bias=bias, window=window, **more)

    def feed_forward(self, config: Config, layer: int) -> nn.Module:
        hidden, act = config.intermediate_size, config.hidden_act
        return nn.GatedMLP(config.hidden_size, hidden, act, bias=config.mlp_bias)

    def forward(self, x: Tensor, residual: Tensor | None, step: Step) -> tuple[Tensor, Tensor]:
        x, residual = self.input_layernorm(x, residual)
        x = self.self_attn(x, step)
        x, residual = self.post_attention_layernorm(x, residual)
        return self.mlp(x, step), residual


class Decoder(nn.Module):
    def __init__(self, config: Config, block: type[Block]) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        ropes = enumerate(block.ropes(config))
        self.layers = nn.ModuleList(block(config, i, rope) for i, rope in ropes)
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        residual = None
        for layer in self.layers:
            x, residual = layer(x, residual, step)
        return self.norm(x, residual)[0]


class Model(nn.TokenModel):
    block: ClassVar[type[Block]] = Block

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.model = Decoder(config, self.block)
        tied = self.model.embed_tokens if config.tie_word_embeddings else None
        self.lm_head = nn.Head(config.hidden_size, config.vocab_size, tied=tied)

    def embed(self, step: Step) -> Tensor:
        return self.model.embed_tokens(step.tokens, step)

    def hidden(self, step: Step) -> Tensor:
        return self.model(self.embed(step), step)

    def logits(self, hidden: Tensor, step: Step) -> Tensor:
        return self.lm_head(hidden, step)


class MultiTokenHead(nn.MultiTokenHead):
    """The multi-token head of most families: a linear of two normed inputs, a layer, and a norm.

    The inputs are the embedding of the next token and the hidden states of a token, in this order
    (DeepSeek-AI 2024). A further pass reads the hidden states after the last norm, as in SGLang;
    vLLM does so as well for GLM, since more drafts are accepted (#46075, #47448). Of several heads
    in a checkpoint, the first one proposes all tokens.
    """

    block: ClassVar[type[Block]] = Block

    def __init__(self, config: Any) -> None:
        super().__init__()
        more = self.extended(config)
        d, eps = more.hidden_size, more.rms_norm_eps
        self.enorm, self.hnorm = nn.RMSNorm(d, eps), nn.RMSNorm(d, eps)
        self.eh_proj = nn.Linear(2 * d, d)
        self.layer = self.block(more, more.num_hidden_layers - 1, self.block.rope(more))
        self.norm = nn.RMSNorm(d, eps)

    @staticmethod
    def extended(config: Any) -> Any:
        """The config of a model with the layer of the head as its last one."""
        return replace(config, num_hidden_layers=config.num_hidden_layers + 1)

    def forward(self, embeddings: Tensor, hidden: Tensor, step: Step) -> Tensor:
        x = torch.cat((self.enorm(embeddings)[0], self.hnorm(hidden)[0]), -1)
        x, residual = self.layer(self.eh_proj(x, step), None, step)
        return self.norm(x, residual)[0]
