"""ModernBERT: a pre-norm encoder with rope, gated MLPs and windows (Warner et al. 2024)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro import Step, nn
from ostro.config import TextConfig, check_sizes, rope_parameters
from ostro.errors import ConfigError

FULL, SLIDING = "full_attention", "sliding_attention"
THETA = {FULL: 160_000.0, SLIDING: 10_000.0}
UNUSED = (
    "cls_token_id decoder_bias deterministic_flash_attn embedding_dropout global_rope_theta "
    "initializer_cutoff_factor local_rope_theta mlp_dropout classifier_dropout reference_compile "
    "repad_logits_with_grad sparse_prediction sparse_pred_ignore_index"
).split()
"""Keys on training, masked tokens and kernels, and older keys that `derive` reads."""

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
    "tanh": F.tanh,
}
"""Activations of the classifier."""


@dataclass(frozen=True, kw_only=True)
class Config(TextConfig):
    """`local_attention`: the width of the windows, half of it on each side of a token."""

    max_position_embeddings: int = 8192
    hidden_activation: str = "gelu"
    norm_eps: float = 1e-5
    norm_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    local_attention: int = 128
    global_attn_every_n_layers: int = 3
    layer_types: tuple[str, ...] | None = None
    classifier_pooling: str = "cls"
    classifier_bias: bool = False
    classifier_activation: str = "gelu"
    num_labels: int = 2
    unimplemented: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], *, allow: Sequence[str] = ()) -> Self:
        return super().from_hf(raw, allow=(*allow, *UNUSED))

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        """Published files have a theta per kind of layer at the top."""
        own = {"rope_parameters": rules(raw), "rope_scaling": None, "rope_theta": 1e4}
        values = super().derive({**raw, **own}, values)
        labels = raw.get("id2label")
        if labels and not isinstance(labels, Mapping):
            raise ConfigError(f"id2label={labels!r:.80} is not an object")
        return {"num_labels": len(labels), **values} if labels else values

    def kind(self, layer: int) -> str:
        """The kind of a layer's attention: FULL or SLIDING."""
        if self.layer_types is not None:
            return self.layer_types[layer]
        return SLIDING if layer % self.global_attn_every_n_layers else FULL

    def window(self, layer: int) -> int:
        return self.local_attention // 2 + 1 if self.kind(layer) == SLIDING else 0

    def check(self) -> None:
        super().check()
        check_sizes(self, "local_attention global_attn_every_n_layers num_labels")
        if not (math.isfinite(self.norm_eps) and 0 <= self.norm_eps < 1):
            raise ConfigError(f"norm_eps={self.norm_eps} is not within 0..1")
        if self.classifier_pooling not in ("cls", "mean"):
            raise ConfigError(f"classifier_pooling={self.classifier_pooling!r} is not implemented")
        if self.classifier_activation not in ACTIVATIONS:
            raise ConfigError(
                f"classifier_activation={self.classifier_activation!r} is not implemented"
            )
        types = self.layer_types
        if types is not None and len(types) != self.num_hidden_layers:
            raise ConfigError(
                f"layer_types lists {len(types)} layers, num_hidden_layers={self.num_hidden_layers}"
            )
        for kind in types or ():
            if kind not in THETA:
                raise ConfigError(f"layer_types contains {kind!r:.80}, which is not implemented")


def rules(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The rope rule of each kind of layer; `rope_scaling` is of both. Raises ConfigError."""
    given = raw.get("rope_parameters") or {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"rope_parameters={given!r:.80} is not an object")
    full = raw.get("global_rope_theta") or THETA[FULL]
    # Without a theta of their own, the windows have the other layers'.
    sliding = raw.get("local_rope_theta", THETA[SLIDING]) or full
    found = {}
    for kind, theta in ((FULL, full), (SLIDING, sliding)):
        rule = given.get(kind) or {}
        if not isinstance(rule, Mapping):
            raise ConfigError(f"rope_parameters: {kind}={rule!r:.80} is not an object")
        found[kind] = rope_parameters({**raw, "rope_parameters": {"rope_theta": theta, **rule}})
    return found


def norm(config: Config) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, config.norm_eps, bias=config.norm_bias)


class Embeddings(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.norm = norm(config)

    def forward(self, step: Step) -> Tensor:
        return self.norm(self.tok_embeddings(step.tokens, step))[0]


class Layer(nn.Module):
    """A pre-norm layer; the first has no norm before its attention."""

    def __init__(self, config: Config, layer: int, rope: nn.Rope) -> None:
        super().__init__()
        d, hidden, act = config.hidden_size, config.intermediate_size, config.hidden_activation
        self.attn_norm = norm(config) if layer else None
        self.attn = nn.EncoderAttention(
            d,
            config.num_attention_heads,
            bias=config.attention_bias,
            rope=rope,
            window=config.window(layer),
        )
        self.mlp_norm = norm(config)
        self.mlp = nn.GatedMLP(d, hidden, act, bias=config.mlp_bias)

    def forward(self, x: Tensor, residual: Tensor | None, step: Step) -> tuple[Tensor, Tensor]:
        x, residual = (x, x) if self.attn_norm is None else self.attn_norm(x, residual)
        x, residual = self.mlp_norm(self.attn(x, step), residual)
        return self.mlp(x, step), residual


class Encoder(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        shape = config.head_dim, config.max_position_embeddings
        ropes = {kind: nn.Rope(rule, *shape) for kind, rule in config.rope_parameters.items()}
        self.layers = nn.ModuleList(
            Layer(config, i, ropes[config.kind(i)]) for i in range(config.num_hidden_layers)
        )
        self.final_norm = norm(config)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        residual = None
        for layer in self.layers:
            x, residual = layer(x, residual, step)
        return self.final_norm(x, residual)[0]


class Model(nn.EncoderModel):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.model = Encoder(config)

    def embed(self, step: Step) -> Tensor:
        return self.model.embeddings(step)

    def hidden(self, step: Step) -> Tensor:
        return self.model(self.embed(step), step)


class Head(nn.Module):
    """A dense layer, an activation and a norm."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        d = config.hidden_size
        self.dense = nn.Linear(d, d, bias=config.classifier_bias)
        self.norm = norm(config)
        self.act = ACTIVATIONS[config.classifier_activation]

    def forward(self, x: Tensor, step: Step) -> Tensor:
        return self.norm(self.act(self.dense(x, step)))[0]


class Classifier(Model):
    """Label scores of the first state, or of the mean of all states."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.mean = config.classifier_pooling == "mean"
        self.head = Head(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels, bias=True)

    def scores(self, hidden: Tensor, step: Step) -> Tensor:
        first = torch.tensor(step.bounds[:-1], device=hidden.device)
        x, rows = hidden[first], step.rows(first)
        if self.mean:
            texts = [hidden[start:stop] for start, stop in pairwise(step.bounds)]
            x = torch.stack([text.float().mean(0) for text in texts]).to(hidden.dtype)
        return self.classifier(self.head(x, rows), rows)
