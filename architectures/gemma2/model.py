"""Gemma 2: pre and post norms, logit softcapping, sliding windows on every other layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ostro import Fused, Step, nn
from ostro.architectures.gemma2.naive import KERNELS
from ostro.config import WindowConfig


@dataclass(frozen=True, kw_only=True)
class Config(WindowConfig):
    num_key_value_heads: int = 4
    head_dim: int = 256
    hidden_act: str = "gelu_pytorch_tanh"
    hidden_activation: str = "gelu_pytorch_tanh"
    tie_word_embeddings: bool = True
    attention_bias: bool = False
    query_pre_attn_scalar: float = 256
    sliding_window: int | None = 4096
    attn_logit_softcapping: float | None = 50.0
    final_logit_softcapping: float | None = 30.0
    unimplemented: ClassVar[Mapping[str, Any]] = {
        **WindowConfig.unimplemented,
        "use_bidirectional_attention": False,
    }

    def slides(self, layer: int) -> bool:
        return layer % 2 == 0


class Block(nn.Module):
    """Attention and MLP with pre and post norms; post norm, addition and next norm are fused."""

    def __init__(self, config: Config, layer: int, rope: nn.Rope) -> None:
        super().__init__()
        d, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = nn.RMSNorm(d, eps)
        self.self_attn = self.attention(config, layer, rope)
        self.post_attention_layernorm = nn.RMSNorm(d, eps)
        self.pre_feedforward_layernorm = nn.RMSNorm(d, eps)
        self.mlp = nn.GatedMLP(d, config.intermediate_size, config.hidden_activation)
        self.post_feedforward_layernorm = nn.RMSNorm(d, eps)
        self.fused = Fused(KERNELS)

    def attention(self, config: Config, layer: int, rope: nn.Rope, **more: Any) -> nn.Module:
        """The attention of a layer; subclasses pass further keywords of nn.Attention as `more`."""
        return nn.Attention(
            config,
            layer,
            rope,
            bias=config.attention_bias,
            out_bias=config.attention_bias,
            window=config.window(layer),
            softcap=config.attn_logit_softcapping or 0.0,
            scale=config.query_pre_attn_scalar**-0.5,
            **more,
        )

    def join(
        self, x: Tensor, residual: Tensor, after: nn.RMSNorm, before: nn.RMSNorm
    ) -> tuple[Tensor, Tensor]:
        """Norm x, add it to the residual, norm the sum: (next input, new residual)."""
        if self.fused.on:
            return self.fused(x, residual, after.weight, before.weight, after.eps)
        return before(after(x)[0], residual)

    def forward(
        self, x: Tensor, residual: Tensor, step: Step, following: nn.RMSNorm
    ) -> tuple[Tensor, Tensor]:
        """x: the normed input; `following` is the first norm of the next block."""
        x = self.self_attn(x, step)
        x, residual = self.join(
            x, residual, self.post_attention_layernorm, self.pre_feedforward_layernorm
        )
        x = self.mlp(x, step)
        return self.join(x, residual, self.post_feedforward_layernorm, following)


class Decoder(nn.Module):
    block: ClassVar[type[Block]] = Block

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.scale = config.hidden_size**0.5
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        ropes = enumerate(self.ropes(config))
        self.layers = nn.ModuleList(self.block(config, i, rope) for i, rope in ropes)
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def ropes(self, config: Config) -> Sequence[nn.Rope]:
        """The rope of each layer: a shared one."""
        rope = nn.Rope(config.rope_parameters, config.head_dim, config.max_position_embeddings)
        return [rope] * config.num_hidden_layers

    def embed(self, step: Step) -> Tensor:
        """Embeddings times sqrt(d), rounded to their dtype as in the reference."""
        x = self.embed_tokens(step.tokens, step)
        return x * torch.tensor(self.scale, dtype=x.dtype)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        norms = [layer.input_layernorm for layer in self.layers]
        x, residual = norms[0](x)
        for layer, following in zip(self.layers, [*norms[1:], self.norm], strict=True):
            x, residual = layer(x, residual, step, following)
        return x


class Model(nn.TokenModel):
    decoder: ClassVar[type[Decoder]] = Decoder

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.model = self.decoder(config)
        tied = self.model.embed_tokens if config.tie_word_embeddings else None
        self.lm_head = nn.Head(config.hidden_size, config.vocab_size, tied=tied)
        self.softcap = config.final_logit_softcapping or 0.0

    def embed(self, step: Step) -> Tensor:
        return self.model.embed(step)

    def hidden(self, step: Step) -> Tensor:
        return self.model(self.embed(step), step)

    def logits(self, hidden: Tensor, step: Step) -> Tensor:
        logits = self.lm_head(hidden, step)
        return torch.tanh(logits / self.softcap) * self.softcap if self.softcap else logits
