"""CLIP's text encoder: causal, pre-norm, with learned positions (Radford et al. 2021).

The vision encoder in `vision` has the same layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro import Names, Pair, Step, nn
from ostro.config import TextConfig
from ostro.errors import ConfigError
from ostro.ops import Op, varlen_attention

LEGACY_EOS = 2
"""The eos id in configs before transformers 4.31; the text then ends at its highest id."""


def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def tanh_gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "quick_gelu": quick_gelu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": tanh_gelu,
    "silu": F.silu,
}


def check_activation(name: str) -> None:
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ConfigError(f"hidden_act={name!r} is not supported; expected one of {known}")


@dataclass(frozen=True, kw_only=True)
class Config(TextConfig):
    vocab_size: int = 49408
    hidden_size: int = 512
    intermediate_size: int = 2048
    num_hidden_layers: int = 12
    num_attention_heads: int = 8
    max_position_embeddings: int = 77
    hidden_act: str = "quick_gelu"
    layer_norm_eps: float = 1e-5
    projection_dim: int = 512
    eos_token_id: int = 49407

    def check(self) -> None:
        super().check()
        check_activation(self.hidden_act)


class Attention(nn.Module):
    """Attention of every row to its sequence, bidirectional or causal."""

    def __init__(self, d: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal, self.scale = heads, causal, (d // heads) ** -0.5
        self.qkv = nn.Linear(d, {"q_proj": d, "k_proj": d, "v_proj": d}, bias=True)
        self.out_proj = nn.Linear(d, d, bias=True, shard="rowwise")
        self.attend = Op(varlen_attention.KERNELS)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        q, k, v = self.qkv(x, step).view(len(x), 3, self.heads, -1).unbind(1)
        y = self.attend(q, k, v, step.bounds, self.scale, causal=self.causal)
        return self.out_proj(y.flatten(1), step)


class MLP(nn.Module):
    def __init__(self, d: int, hidden: int, act: str) -> None:
        super().__init__()
        self.fc1 = nn.Linear(d, hidden, bias=True)
        self.fc2 = nn.Linear(hidden, d, bias=True, shard="rowwise")
        self.act = ACTIVATIONS[act]

    def forward(self, x: Tensor, step: Step) -> Tensor:
        return self.fc2(self.act(self.fc1(x, step)), step)


class Shape(Protocol):
    """The fields that a layer needs, of text and vision configs."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_hidden_layers(self) -> int: ...
    @property
    def num_attention_heads(self) -> int: ...
    @property
    def hidden_act(self) -> str: ...
    @property
    def layer_norm_eps(self) -> float: ...


class Layer(nn.Module):
    def __init__(self, config: Shape, *, causal: bool) -> None:
        super().__init__()
        d, eps = config.hidden_size, config.layer_norm_eps
        self.layer_norm1 = nn.LayerNorm(d, eps)
        self.self_attn = Attention(d, config.num_attention_heads, causal=causal)
        self.layer_norm2 = nn.LayerNorm(d, eps)
        self.mlp = MLP(d, config.intermediate_size, config.hidden_act)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        y, x = self.layer_norm2(self.self_attn(self.layer_norm1(x)[0], step), x)
        return x + self.mlp(y, step)


class Encoder(nn.Module):
    def __init__(self, config: Shape, *, causal: bool) -> None:
        super().__init__()
        count = config.num_hidden_layers
        self.layers = nn.ModuleList(Layer(config, causal=causal) for _ in range(count))

    def forward(self, x: Tensor, step: Step) -> list[Tensor]:
        """x [T, d] -> x and the output of each layer, each [T, d]."""
        states = [x]
        for layer in self.layers:
            states.append(layer(states[-1], step))
        return states


class TextEmbeddings(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embedding = nn.Embedding(config.max_position_embeddings, config.hidden_size)

    def forward(self, step: Step) -> Tensor:
        places = self.position_embedding(step.positions[0], step)
        return self.token_embedding(step.tokens, step) + places


class TextModel(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embeddings = TextEmbeddings(config)
        self.encoder = Encoder(config, causal=True)
        self.final_layer_norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, step: Step) -> Tensor:
        return self.final_layer_norm(self.encoder(self.embeddings(step), step)[-1])[0]


class Model(nn.EncoderModel):
    """The text encoder."""

    layers = ("text_model.encoder.layers",)

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.eos = config.eos_token_id
        self.text_model = TextModel(config)

    def embed(self, step: Step) -> Tensor:
        return self.text_model.embeddings(step)

    def hidden(self, step: Step) -> Tensor:
        return self.text_model(step)

    def pooled(self, hidden: Tensor, step: Step) -> Tensor:
        """hidden [T, d] -> [B, d]: the state at each text's first end-of-text token."""
        return hidden[self.ends(step)]

    def ends(self, step: Step) -> Tensor:
        """The row of each text's first end-of-text token, or its first row without one: [B]."""
        marks = step.tokens if self.eos == LEGACY_EOS else (step.tokens == self.eos).int()
        sizes = [stop - start for start, stop in zip(step.bounds, step.bounds[1:], strict=False)]
        texts = marks.split(sizes)
        firsts = zip(step.bounds, texts, strict=False)
        return torch.stack([start + text.argmax() for start, text in firsts])


class Projected(Model):
    """The text encoder with a projection after the pooling."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.text_projection = nn.Linear(config.hidden_size, config.projection_dim)

    def pooled(self, hidden: Tensor, step: Step) -> Tensor:
        ends = self.ends(step)
        return self.text_projection(hidden[ends], step.rows(ends))


def names(config: Config) -> Names:
    """transformers 5 saves the text encoder without the prefix "text_model" of older files."""
    embeddings = ("embeddings.token_embedding", "embeddings.position_embedding")
    parts = (*embeddings, "encoder", "final_layer_norm")
    whole = tuple(Pair(f"text_model.{part}", f"text_model.{part}") for part in parts)
    bare = tuple(Pair(part, f"text_model.{part}") for part in parts)
    unused = ("text_model.embeddings.position_ids", "embeddings.position_ids")
    return Names(hub=whole + bare, ignore=unused)
