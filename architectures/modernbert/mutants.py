"""Mutants of ModernBERT: porting bugs that its parity test must detect."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from ostro import Mutant, Step, nn
from ostro.architectures.modernbert.model import Encoder, Layer
from ostro.testing import each


def window(by: int) -> Callable[[nn.Model], None]:
    def change(attention: nn.EncoderAttention) -> None:
        if attention.window:
            attention.window += by

    return lambda model: each(model, nn.EncoderAttention, change)


def no_window(model: nn.Model) -> None:
    each(model, nn.EncoderAttention, lambda a: setattr(a, "window", 0))


def one_rope(model: nn.Model) -> None:
    """Rotate by the frequencies of the full layers in all layers."""

    def change(encoder: Encoder) -> None:
        rope = encoder.layers[0].attn.rope
        for layer in encoder.layers:
            layer.attn.rope = rope

    each(model, Encoder, change)


def first_norm(model: nn.Model) -> None:
    """Norm the embeddings again before the first attention."""

    def change(layer: Layer) -> None:
        if layer.attn_norm is None:
            layer.attn_norm = nn.LayerNorm(layer.attn.qkv.n_in, 1e-5, weight=False, bias=False)

    each(model, Layer, change)


def post_norm(model: nn.Model) -> None:
    def change(layer: Layer) -> None:
        def forward(x: Tensor, residual: Tensor | None, step: Step) -> tuple[Tensor, Tensor]:
            x = x if residual is None else x + residual
            x = layer.mlp_norm(layer.attn(x, step), x)[0]
            return layer.mlp(x, step), x

        layer.forward = forward  # type: ignore[method-assign]

    each(model, Layer, change)


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="window one wider", apply=window(1))
    yield Mutant(name="window one narrower", apply=window(-1))
    yield Mutant(name="no windows", apply=no_window)
    yield Mutant(name="one theta for all layers", apply=one_rope)
    yield Mutant(name="a norm before the first attention", apply=first_norm)
    yield Mutant(name="norm after instead of before", apply=post_norm)
