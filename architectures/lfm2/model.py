"""LFM2: layers of gated short convolutions and of attention (transformers' Lfm2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ostro import CacheSpec, Step, nn
from ostro.config import TextConfig
from ostro.errors import ConfigError
from ostro.ops import Op, causal_conv


@dataclass(frozen=True, kw_only=True)
class Config(TextConfig):
    """Attention layers are in layer_types, in older files in full_attn_idxs; by default all are."""

    intermediate_size: int = 12288
    block_ff_dim: int | None = None  # intermediate_size under its older name
    block_auto_adjust_ff_dim: bool = True
    block_ffn_dim_multiplier: float | None = 1.0
    block_multiple_of: int = 256
    max_position_embeddings: int = 128_000
    norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    tie_embedding: bool | None = None  # tie_word_embeddings under its older name
    conv_bias: bool = False
    conv_L_cache: int = 3
    full_attn_idxs: tuple[int, ...] | None = None
    layer_types: tuple[str, ...] | None = None
    default_theta: ClassVar[float] = 1000000.0

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        values = super().derive(raw, values)
        values["rms_norm_eps"] = values.get("norm_eps", 1e-5)
        for older, name in (
            ("block_ff_dim", "intermediate_size"),
            ("tie_embedding", "tie_word_embeddings"),
        ):
            if values.get(older) is not None:
                values[name] = values[older]
        return values

    def check(self) -> None:
        super().check()
        for name in ("conv_L_cache", "block_multiple_of"):
            if not 0 < getattr(self, name) <= 65536:
                raise ConfigError(f"{name}={getattr(self, name)} is not within 1..65536")
        if not 0 < (self.block_ffn_dim_multiplier or 1) < 1000:
            raise ConfigError(f"{self.block_ffn_dim_multiplier=} is not within 0..1000")
        types = self.layer_types
        if types is not None and len(types) != self.num_hidden_layers:
            raise ConfigError(
                f"layer_types lists {len(types)} layers, num_hidden_layers={self.num_hidden_layers}"
            )
        for kind in types or ():
            if kind not in ("full_attention", "conv"):
                raise ConfigError(
                    f"layer_types names {kind!r:.80}, expected conv or full_attention"
                )

    def attends(self, layer: int) -> bool:
        if self.layer_types is not None:
            return self.layer_types[layer] == "full_attention"
        return self.full_attn_idxs is None or layer in self.full_attn_idxs

    @property
    def feed_forward_size(self) -> int:
        """The feed-forward size, with block_auto_adjust_ff_dim two thirds of it, scaled and rounded
        up.
        """
        size = self.intermediate_size
        if not self.block_auto_adjust_ff_dim:
            return size
        size = int(2 * size / 3)
        if self.block_ffn_dim_multiplier is None:
            return size
        size = int(self.block_ffn_dim_multiplier * size)
        return -(-size // self.block_multiple_of) * self.block_multiple_of


class ShortConv(nn.RecurrentLayer):
    """Short convolution: B, C and x from one linear; y = C * conv(B * x)."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        d, bias = config.hidden_size, config.conv_bias
        self.layer = layer
        self.in_proj = nn.Linear(d, 3 * d, bias=bias)
        self.conv = nn.Filters(d, config.conv_L_cache, bias=bias)
        self.out_proj = nn.Linear(d, d, bias=bias, shard="rowwise")
        self.convolve = Op(causal_conv.KERNELS)

    @property
    def spec(self) -> CacheSpec:
        c, _, w = self.conv.weight.shape
        return CacheSpec(kind="recurrent", state=((c, w - 1),))

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """x [T, d] -> [T, d]."""
        b, c, x = self.in_proj(x, step).chunk(3, -1)
        view = self.view(step)
        filters = self.conv.weight[:, 0], self.conv.bias
        x = self.convolve(b * x, *filters, view.states[0], view.layout)
        return self.out_proj(c * x, step)


class Block(nn.Module):
    """A pre-norm block; x and the residual are separate, so that a norm can fuse their addition."""

    def __init__(self, config: Config, layer: int, rope: nn.Rope) -> None:
        super().__init__()
        d, eps = config.hidden_size, config.rms_norm_eps
        self.operator_norm = nn.RMSNorm(d, eps)
        if config.attends(layer):
            self.operator = "self_attn"
            self.self_attn = nn.Attention(config, layer, rope, qk_norm="head")
        else:
            self.operator = "conv"
            self.conv = ShortConv(config, layer)
        self.ffn_norm = nn.RMSNorm(d, eps)
        self.feed_forward = self.mlp(config, layer)

    def mlp(self, config: Config, layer: int) -> nn.Module:
        """The feed-forward of a layer."""
        return nn.GatedMLP(config.hidden_size, config.feed_forward_size, "silu")

    def forward(self, x: Tensor, residual: Tensor | None, step: Step) -> tuple[Tensor, Tensor]:
        x, residual = self.operator_norm(x, residual)
        x = getattr(self, self.operator)(x, step)
        x, residual = self.ffn_norm(x, residual)
        return self.feed_forward(x, step), residual


class Decoder(nn.Module):
    def __init__(self, config: Config, block: type[Block]) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        rope = nn.Rope(config.rope_parameters, config.head_dim, config.max_position_embeddings)
        self.layers = nn.ModuleList(block(config, i, rope) for i in range(config.num_hidden_layers))
        self.embedding_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        residual = None
        for layer in self.layers:
            x, residual = layer(x, residual, step)
        return self.embedding_norm(x, residual)[0]


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
