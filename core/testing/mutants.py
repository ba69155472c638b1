"""Deliberate porting bugs that every decoder's parity test must notice.

A parity test proves little by being green: with default initialisation a wrong rope or a wrong
scale still agrees to three digits. So each bug is applied to our own model, after loading, and the
test must turn red. A family adds its own bugs to these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ostro.core.nn import Attention, Embedding, Filters, GatedMLP, Linear, Model, RMSNorm, Rope
from ostro.core.records import Mutant

M = TypeVar("M")
SMALL = 0.02
"""The spread of weights at which a wrong epsilon shows."""


def each(model: Model, kind: type[M], change: Callable[[M], object]) -> None:
    """Apply a change to every module of a kind. Raises LookupError where there is none."""
    found = [module for module in model.modules() if isinstance(module, kind)]
    if not found:
        raise LookupError(f"the model has no {kind.__name__}: this mutant says nothing about it")
    for module in found:
        change(module)


def retable(rope: Rope, **parameters: Any) -> None:
    rope.rule.update(parameters)
    rope.settle(rope.context, rope.table.device)


def rope_theta(model: Model) -> None:
    each(model, Rope, lambda r: retable(r, rope_theta=r.rule["rope_theta"] * 50))


def rope_layout(model: Model) -> None:
    def flip(rope: Rope) -> None:
        rope.interleaved = not rope.interleaved

    each(model, Rope, flip)


def attention_scale(model: Model) -> None:
    each(model, Attention, lambda a: setattr(a, "scale", a.scale * 1.1))


def norm_eps(model: Model) -> None:
    each(model, RMSNorm, lambda n: setattr(n, "eps", n.eps * 10))


def norm_weight(model: Model) -> None:
    each(model, RMSNorm, lambda n: n.weight.data.sub_(1))


def activation(model: Model) -> None:
    def swap(mlp: GatedMLP) -> None:
        mlp.act = "gelu" if mlp.act == "silu" else "silu"

    each(model, GatedMLP, swap)


def gate_and_up(model: Model) -> None:
    def swap(mlp: GatedMLP) -> None:
        half = mlp.gate_up.n_out // 2
        forward = mlp.gate_up.forward
        mlp.gate_up.forward = lambda x, step: forward(x, step).roll(half, -1)  # type: ignore[method-assign]

    each(model, GatedMLP, swap)


def window(by: int) -> Callable[[Model], None]:
    def change(attention: Attention) -> None:
        if attention.window:
            attention.window += by

    return lambda model: each(model, Attention, change)


def no_window(model: Model) -> None:
    each(model, Attention, lambda a: setattr(a, "window", 0))


def all_windows(model: Model) -> None:
    widths = [a.window for a in model.modules() if isinstance(a, Attention)]
    each(model, Attention, lambda a: setattr(a, "window", max(widths)))


def no_head_norms(model: Model) -> None:
    each(model, Attention, lambda a: a.__dict__["_modules"].update(q_norm=None, k_norm=None))


def no_softcap(model: Model) -> None:
    each(model, Attention, lambda a: setattr(a, "softcap", 0.0))


def filters_backwards(model: Model) -> None:
    def flip(filters: Filters) -> None:
        filters.weight.data = filters.weight.data.flip(-1).contiguous()

    each(model, Filters, flip)


def no_bias(model: Model) -> None:
    def drop(linear: Linear) -> None:
        linear.bias = None

    each(model, Linear, drop)


def embedding_scale(model: Model) -> None:
    def scale(embedding: Embedding) -> None:
        forward = embedding.forward
        embedding.forward = lambda ids, step: forward(ids, step) * 1.05  # type: ignore[method-assign]

    each(model, Embedding, scale)


def decoder() -> Iterator[Mutant]:
    """The bugs that make sense for any decoder with rope, RMS norms and gated MLPs."""
    yield Mutant(name="rope theta x 50", apply=rope_theta)
    yield Mutant(name="rope pairs adjacent instead of halves", apply=rope_layout)
    yield Mutant(name="scores scaled by 1.1", apply=attention_scale)
    yield Mutant(name="norm epsilon x 10", apply=norm_eps, std=SMALL)
    yield Mutant(name="norm weights off by 1", apply=norm_weight)
    yield Mutant(name="another activation", apply=activation)
    yield Mutant(name="gate and up exchanged", apply=gate_and_up)


def windowed() -> Iterator[Mutant]:
    """The bugs of families with sliding windows."""
    yield Mutant(name="window one longer", apply=window(1))
    yield Mutant(name="window one shorter", apply=window(-1))
    yield Mutant(name="no window", apply=no_window)
