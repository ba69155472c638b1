"""BERT: a post-norm encoder with learned positions (Devlin et al. 2018)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro import Step, nn
from ostro.config import TextConfig, check_sizes
from ostro.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Config(TextConfig):
    hidden_act: str = "gelu"
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    position_embedding_type: str = "absolute"
    labels: int = 2
    unimplemented: ClassVar[Mapping[str, Any]] = {
        "is_decoder": False,
        "add_cross_attention": False,
    }

    @classmethod
    def derive(cls, raw: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
        labels = raw.get("num_labels") or len(raw.get("id2label") or (0, 1))
        return super().derive(raw, values) | {"labels": labels}

    def check(self) -> None:
        super().check()
        if self.position_embedding_type != "absolute":
            kind = self.position_embedding_type
            raise ConfigError(f"position_embedding_type={kind!r} is not implemented")
        check_sizes(self, "type_vocab_size labels")
        if not (math.isfinite(self.layer_norm_eps) and 0 <= self.layer_norm_eps < 1):
            raise ConfigError(f"layer_norm_eps={self.layer_norm_eps} is not within 0..1")
        if self.hidden_act not in ("gelu", "gelu_new", "gelu_pytorch_tanh"):
            raise ConfigError(f"hidden_act={self.hidden_act!r} is not implemented")


class Embeddings(nn.Module):
    """Token, position and token type embeddings; positions [2, T] hold token types in row 1."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        d = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, d)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, d)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, d)
        self.LayerNorm = nn.LayerNorm(d, config.layer_norm_eps)
        self.last_type = config.type_vocab_size - 1

    def places(self, step: Step) -> Tensor:
        """The row of the position embeddings of each token: [T] int64."""
        return step.positions[0]

    def forward(self, step: Step) -> Tensor:
        places, kinds = self.places(step), step.positions[1:]
        # A model with one type (RoBERTa) has it for both texts of a pair.
        kind = kinds[0].clamp(max=self.last_type) if len(kinds) else torch.zeros_like(places)
        x = self.word_embeddings(step.tokens, step) + self.position_embeddings(places, step)
        return self.LayerNorm(x, self.token_type_embeddings(kind, step))[0]


class Layer(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        d, eps = config.hidden_size, config.layer_norm_eps
        self.attention = nn.EncoderAttention(d, config.num_attention_heads)
        self.attention_norm = nn.LayerNorm(d, eps)
        self.mlp = nn.MLP(d, config.intermediate_size, config.hidden_act)
        self.mlp_norm = nn.LayerNorm(d, eps)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        x = self.attention_norm(self.attention(x, step), x)[0]
        return self.mlp_norm(self.mlp(x, step), x)[0]


class Model(nn.EncoderModel):
    layers = ("encoder.layer",)

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.encoder = nn.Module()
        self.encoder.layer = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))

    def embed(self, step: Step) -> Tensor:
        return self.embeddings(step)

    def hidden(self, step: Step) -> Tensor:
        x = self.embed(step)
        for layer in self.encoder.layer:
            x = layer(x, step)
        return x


class Classifier(Model):
    """Label scores of the first token's state, after BERT's pooler."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size, bias=True)
        self.classifier = nn.Linear(config.hidden_size, config.labels, bias=True)

    def scores(self, hidden: Tensor, step: Step) -> Tensor:
        first = torch.tensor(step.bounds[:-1], device=hidden.device)
        rows = step.rows(first)
        return self.classifier(F.tanh(self.pooler(hidden[first], rows)), rows)
