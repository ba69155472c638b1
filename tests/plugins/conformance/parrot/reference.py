"""The same written out in plain torch, for whole prompts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parrot.model import Config


class Norm(nn.Module):
    def __init__(self, d: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d)), eps

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight


def rotated(x: Tensor) -> Tensor:
    """x [B, h, T, d], by the usual angles."""
    half = x.shape[-1] // 2
    rates = 10000.0 ** (-torch.arange(half) / half)
    angles = torch.arange(x.shape[-2])[:, None] * rates
    a, b = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        d, self.size = config.hidden_size, config.head_dim
        kv = config.num_key_value_heads * self.size
        self.q_proj, self.o_proj = (nn.Linear(d, d, bias=False) for _ in range(2))
        self.k_proj, self.v_proj = (nn.Linear(d, kv, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            proj(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        k, v = (y.repeat_interleave(q.shape[1] // y.shape[1], 1) for y in (k, v))
        y = F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        out: Tensor = self.o_proj(y.transpose(1, 2).flatten(2))
        return out


class MLP(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        d, hidden = config.hidden_size, config.intermediate_size
        self.gate_proj, self.up_proj = (nn.Linear(d, hidden, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(hidden, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(self.gate_proj(x).relu() * self.up_proj(x))
        return out


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Plain(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.model.layers = nn.ModuleList([Block(config) for _ in range(config.num_hidden_layers)])
        self.model.norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x)
        out: Tensor = self.lm_head(self.model.norm(x))
        return out
