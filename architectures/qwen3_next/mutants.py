"""Mutants of qwen3_next: porting bugs that its parity test must detect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from ostro import Mutant, nn
from ostro.architectures.mixtral.mutants import experts
from ostro.architectures.qwen2_moe.mutants import shared
from ostro.architectures.qwen3_next.model import Attention, DeltaNet
from ostro.testing import each

ARGUMENTS = ("q", "k", "v", "b", "a", "rate", "dt_bias")


def ruled(**changes: Callable[[dict[str, Any]], Any]) -> Callable[[nn.Model], None]:
    """Change arguments of the delta rule; each function receives all arguments."""

    def change(net: DeltaNet) -> None:
        plain = net.rule.kernel

        def other(*args: Any) -> Tensor:
            arguments = dict(zip(ARGUMENTS, args, strict=False))
            changed = {name: make(arguments) for name, make in changes.items()}
            return plain(*(arguments | changed).values(), *args[len(ARGUMENTS) :])

        net.rule.kernel = other

    return lambda model: each(model, DeltaNet, change)


def no_activation(model: nn.Model) -> None:
    def change(net: DeltaNet) -> None:
        plain = net.convolve.kernel
        net.convolve.kernel = lambda *args: plain(*args[:-1], "")

    each(model, DeltaNet, change)


def queries_for_gates(attention: Attention) -> None:
    forward, n = attention.qkv.forward, 2 * attention.heads * attention.head_dim

    def swapped(x: Tensor, step: Any) -> Tensor:
        y = forward(x, step)
        y[:, :n] = y[:, :n].unflatten(1, (-1, 2, attention.head_dim)).flip(2).flatten(1)
        return y

    attention.qkv.forward = swapped  # type: ignore[method-assign]


def nets() -> Iterator[Mutant]:
    """Mutants of families with gated delta nets and gated attention."""
    yield Mutant(name="no silu after the convolution", apply=no_activation)
    yield Mutant(name="q and k exchanged", apply=ruled(q=lambda a: a["k"], k=lambda a: a["q"]))
    yield Mutant(name="b and a exchanged", apply=ruled(b=lambda a: a["a"], a=lambda a: a["b"]))
    yield Mutant(name="no bias on the time step", apply=ruled(dt_bias=lambda a: a["rate"] * 0))
    yield Mutant(name="A without its exponential", apply=ruled(rate=lambda a: (-a["rate"]).log()))
    yield Mutant(
        name="key heads in another order",
        apply=ruled(k=lambda a: a["k"].flip(1).contiguous()),
    )
    yield Mutant(
        name="queries and gates exchanged",
        apply=lambda model: each(model, Attention, queries_for_gates),
    )


def mutants() -> Iterator[Mutant]:
    yield from experts()
    yield from nets()
    yield from shared()
