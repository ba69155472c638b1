"""Gemma 4: Gemma's blocks with per-layer embeddings, shared keys and values, and experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ostro import CacheSpec, Step, nn
from ostro.architectures.gemma2 import model as gemma2
from ostro.architectures.gemma4.config import SLIDING, Config
from ostro.ops import Op, RoutingRule, act_mul


@dataclass(frozen=True)
class PerLayerInputs:
    """The per-layer embeddings of the rows of a step: values [T, layers, d].

    Every layer gets all of them, so that they move once to each device.
    """

    values: Tensor


class Attention(nn.Attention):
    """Values are normed without a weight; with `k_eq_v` they are the keys before norm and rotation.

    Within an image, rows attend to each other only in layers with a window, and only if
    use_bidirectional_attention is "vision".
    """

    def __init__(self, config: Config, layer: int, rope: nn.Rope) -> None:
        shape = replace(config, **config.heads(layer))  # type: ignore[arg-type]
        source, sliding = config.source(layer), config.kind(layer) == SLIDING
        super().__init__(
            shape,
            source,
            rope,
            bias=config.attention_bias,
            out_bias=config.attention_bias,
            qk_norm="head",
            window=config.window(layer),
            scale=1.0,
            shared=layer >= config.first_shared,
        )
        self.spans = sliding and config.use_bidirectional_attention == "vision"
        self.k_eq_v = config.attention_k_eq_v and not sliding and self.kv_heads > 0
        d = self.head_dim
        if self.k_eq_v:
            parts = {"q_proj": self.heads * d, "k_proj": self.kv_heads * d}
            self.qkv = nn.Linear(config.hidden_size, parts, bias=config.attention_bias)
        self.v_norm = nn.RMSNorm(d, config.rms_norm_eps, weight=False)

    @property
    def spec(self) -> CacheSpec | None:
        spec = super().spec
        return spec and replace(spec, spans=self.spans)

    def project(self, x: Tensor, step: Step) -> tuple[Tensor, Tensor, Tensor]:
        if not self.kv_heads:
            return super().project(x, step)
        if self.k_eq_v:
            heads = self.qkv(x, step).view(len(x), -1, self.head_dim)
            q, k = heads.split((self.heads, self.kv_heads), 1)
            v = k
        else:
            q, k, v = super().project(x, step)
        return q, k, self.v_norm(v)[0]


class Router(nn.Module):
    """Selects experts by the residual stream, normed without a weight and scaled."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        d, experts, top = config.hidden_size, config.num_experts or 0, config.top_k_experts or 0
        self.norm = nn.RMSNorm(d, config.rms_norm_eps, weight=False)
        self.proj = nn.Float32Router(d, experts, RoutingRule(top, renormalise=True))
        self.scale = nn.Parameter(torch.ones(d), requires_grad=False)
        self.per_expert_scale = nn.Parameter(torch.ones(experts), requires_grad=False)
        self.factor = d**-0.5

    def choose(self, x: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """x [T, d] -> (experts [T, k] int64, weights [T, k] float32)."""
        x = self.norm(x)[0] * self.scale.to(x.dtype) * self.factor
        chosen, weights = self.proj.choose(x, step)
        return chosen, weights * self.per_expert_scale[chosen]


class Block(gemma2.Block):
    """A block of Gemma 2, experts beside the MLP, a per-layer embedding, and a factor on it all."""

    def __init__(self, config: Config, layer: int, rope: nn.Rope) -> None:
        wide = replace(config, intermediate_size=config.width(layer))
        super().__init__(wide, layer, rope)  # type: ignore[arg-type]
        d, eps, width = config.hidden_size, config.rms_norm_eps, config.hidden_size_per_layer_input
        self.layer, self.width, self.has_experts = layer, width, config.enable_moe_block
        self.layer_scalar = nn.Parameter(torch.ones(1), requires_grad=False)
        if width:
            self.per_layer_input_gate = nn.Linear(d, width)
            self.per_layer_projection = nn.Linear(width, d)
            self.post_per_layer_input_norm = nn.RMSNorm(d, eps)
            self.act_mul = Op(act_mul.KERNELS)
        if self.has_experts:
            experts, hidden = config.num_experts or 0, config.moe_intermediate_size or 0
            self.router = Router(config)
            self.experts = nn.Experts(experts, d, hidden, config.hidden_activation)
            self.post_feedforward_layernorm_1 = nn.RMSNorm(d, eps)
            self.post_feedforward_layernorm_2 = nn.RMSNorm(d, eps)
            self.pre_feedforward_layernorm_2 = nn.RMSNorm(d, eps)

    def attention(self, config: Any, layer: int, rope: nn.Rope, **more: Any) -> nn.Module:
        return Attention(config, layer, rope, **more)

    def feed_forward(self, x: Tensor, residual: Tensor, step: Step) -> Tensor:
        """The MLP of the normed x, and the experts of the residual: [T, d] -> [T, d]."""
        y: Tensor = self.mlp(x, step)
        if not self.has_experts:
            return y
        chosen, weights = self.router.choose(residual, step)
        z = self.pre_feedforward_layernorm_2(residual)[0]
        z = self.experts(z, chosen, weights, step)
        return self.post_feedforward_layernorm_1(y)[0] + self.post_feedforward_layernorm_2(z)[0]

    def add_per_layer(self, x: Tensor, inputs: PerLayerInputs, step: Step) -> Tensor:
        """Add the layer's embedding, gated by x [T, d]."""
        gate = self.per_layer_input_gate(x, step)
        y = self.act_mul(torch.cat((gate, inputs.values[:, self.layer]), -1), self.mlp.act)
        y = self.post_per_layer_input_norm(self.per_layer_projection(y, step))[0]
        return x + y

    def forward(self, x: Tensor, inputs: PerLayerInputs | None, step: Step) -> Tensor:
        """x [T, d], the residual stream -> [T, d]."""
        y = self.self_attn(self.input_layernorm(x)[0], step)
        y, x = self.join(y, x, self.post_attention_layernorm, self.pre_feedforward_layernorm)
        x = x + self.post_feedforward_layernorm(self.feed_forward(y, x, step))[0]
        if inputs is not None:
            x = self.add_per_layer(x, inputs, step)
        return x * self.layer_scalar.to(x.dtype)


class Decoder(gemma2.Decoder):
    """`placeholders` are the tokens of media, whose embeddings are those of `pad`."""

    block = Block

    def __init__(self, config: Config) -> None:
        super().__init__(config)  # type: ignore[arg-type]
        d, eps, width = config.hidden_size, config.rms_norm_eps, config.hidden_size_per_layer_input
        self.shape, self.pad = (config.num_hidden_layers, width), config.pad_token_id
        self.placeholders: tuple[int, ...] = ()
        if width:
            n = config.num_hidden_layers * width
            self.embed_tokens_per_layer = nn.Embedding(config.vocab_size_per_layer_input, n)
            self.per_layer_model_projection = nn.Linear(d, n)
            self.per_layer_projection_norm = nn.RMSNorm(width, eps)

    def ropes(self, config: Any) -> Sequence[nn.Rope]:
        """The ropes of layers with and without a window."""
        context, kinds = (
            config.max_position_embeddings,
            [*map(config.kind, range(config.num_hidden_layers))],
        )
        sizes = {kind: config.heads(i)["head_dim"] for i, kind in enumerate(kinds)}
        ropes = {k: nn.Rope(config.rope_parameters[k], d, context) for k, d in sizes.items()}
        return [ropes[kind] for kind in kinds]

    def padded(self, tokens: Tensor) -> Tensor:
        """The tokens with `pad` in place of placeholders."""
        for placeholder in self.placeholders:
            tokens = tokens.masked_fill(tokens == placeholder, self.pad)
        return tokens

    def embed(self, step: Step) -> Tensor:
        return super().embed(replace(step, tokens=self.padded(step.tokens)))

    def per_layer(self, x: Tensor, step: Step) -> PerLayerInputs | None:
        """The per-layer embeddings of the tokens, plus those that follow from x [T, d]."""
        layers, width = self.shape
        if not width:
            return None
        own = self.embed_tokens_per_layer(self.padded(step.tokens), step)
        own = own * torch.tensor(width**0.5, dtype=own.dtype)
        projected = self.per_layer_model_projection(x, step) * x.shape[-1] ** -0.5
        projected = self.per_layer_projection_norm(projected.view(-1, layers, width))[0]
        return PerLayerInputs((projected + own.view(-1, layers, width)) * 2**-0.5)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        inputs = self.per_layer(x, step)
        for layer in self.layers:
            x = layer(x, inputs, step)
        normed: Tensor = self.norm(x)[0]
        return normed


class Model(gemma2.Model):
    decoder = Decoder
