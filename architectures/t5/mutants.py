"""Mutants of T5: porting bugs that its parity test must detect."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ostro import Mutant, nn
from ostro.architectures.t5 import model as t5
from ostro.testing import SMALL, each
from ostro.testing import mutants as common


def scaled(model: nn.Model) -> None:
    def scale(attention: t5.Attention) -> None:
        forward = attention.qkv.forward
        inner = attention.qkv.n_out // 3
        factor = torch.ones(3 * inner)
        factor[:inner] = (inner // attention.heads) ** -0.5
        attention.qkv.forward = lambda x, step: forward(x, step) * factor  # type: ignore[method-assign]

    each(model, t5.Attention, scale)


def no_bias(model: nn.Model) -> None:
    each(model, t5.RelativeBias, lambda b: b.weight.data.zero_())


def one_direction(model: nn.Model) -> None:
    """Use the buckets of a decoder: all for earlier keys, none for later keys."""

    def change(bias: t5.RelativeBias) -> None:
        bucket = bias.bucket

        def before(distance: Tensor) -> Tensor:
            bias.buckets *= 2
            found = bucket(distance.clamp(max=0))
            bias.buckets //= 2
            return found

        bias.bucket = before  # type: ignore[method-assign]

    each(model, t5.RelativeBias, change)


def other_way(model: nn.Model) -> None:
    def flip(bias: t5.RelativeBias) -> None:
        bucket = bias.bucket
        bias.bucket = lambda distance: bucket(-distance)  # type: ignore[method-assign]

    each(model, t5.RelativeBias, flip)


def linear_buckets(model: nn.Model) -> None:
    """Omit logarithmic buckets: distant keys share the last bucket of their half."""
    each(model, t5.RelativeBias, lambda b: setattr(b, "longest", b.buckets // 4 + 1))


def first_layer_only(model: nn.Model) -> None:
    first: list[t5.Attention] = []

    def drop(attention: t5.Attention) -> None:
        forward = attention.forward
        if first:
            attention.forward = lambda x, runs, step: forward(  # type: ignore[method-assign]
                x, [t5.TextRun(r.start, r.stop, r.length, 0 * r.bias) for r in runs], step
            )
        first.append(attention)

    each(model, t5.Attention, drop)


def exact_gelu(model: nn.Model) -> None:
    each(model, nn.GatedMLP, lambda mlp: setattr(mlp, "act", "gelu"))


def norm_eps(model: nn.Model) -> None:
    each(model, nn.RMSNorm, lambda n: setattr(n, "eps", n.eps * 1000))


def layer_norm(model: nn.Model) -> None:
    """Subtract the mean first, as in other layer norms."""

    def change(norm: nn.RMSNorm) -> None:
        forward = norm.forward

        def centred(x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
            return forward(x - x.mean(-1, keepdim=True), residual)

        norm.forward = centred  # type: ignore[method-assign]

    each(model, nn.RMSNorm, change)


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="scores scaled by the width of a head", apply=scaled)
    yield Mutant(name="no bias by relative position", apply=no_bias)
    yield Mutant(name="buckets of a decoder", apply=one_direction)
    yield Mutant(name="before and after exchanged", apply=other_way)
    yield Mutant(name="no logarithm for far positions", apply=linear_buckets)
    yield Mutant(name="bias in the first layer only", apply=first_layer_only)
    yield Mutant(name="embedding scaled", apply=common.embedding_scale)
    yield Mutant(name="norm with the mean subtracted", apply=layer_norm)
    yield Mutant(name="norm epsilon x 1000", apply=norm_eps, std=SMALL)
    yield Mutant(name="gate and up exchanged", apply=common.gate_and_up)
    yield Mutant(name="another activation", apply=common.activation)
