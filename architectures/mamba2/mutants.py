"""Mutants of mamba2: porting bugs that its parity test must detect."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from ostro import Mutant, nn
from ostro.architectures.mamba2.model import GatedNorm, Mixer
from ostro.testing import (
    SMALL,
    each,
    filters_backwards,
    no_bias,
    norm_eps,
    norm_weight,
)

ARGUMENTS = ("x", "dt", "a", "b", "c", "d", "dt_bias", "limit")


def scanned(**changes: Callable[[dict[str, Any]], Any]) -> Callable[[nn.Model], None]:
    """Change arguments of the scan; each function receives all arguments."""

    def change(mixer: Mixer) -> None:
        plain = mixer.scan.kernel

        def other(*args: Any) -> Tensor:
            arguments = dict(zip(ARGUMENTS, args, strict=False))
            changed = {name: make(arguments) for name, make in changes.items()}
            return plain(*(arguments | changed).values(), *args[len(ARGUMENTS) :])

        mixer.scan.kernel = other

    return lambda model: each(model, Mixer, change)


def no_filter_bias(model: nn.Model) -> None:
    each(model, nn.Filters, lambda f: setattr(f, "bias", None))


def no_activation(model: nn.Model) -> None:
    def change(mixer: Mixer) -> None:
        plain = mixer.convolve.kernel
        mixer.convolve.kernel = lambda *args: plain(*args[:-1], "")

    each(model, Mixer, change)


def one_group(model: nn.Model) -> None:
    each(model, GatedNorm, lambda n: setattr(n, "groups", 1))


def gate_after_norm(model: nn.Model) -> None:
    def change(norm: GatedNorm) -> None:
        gated = norm.forward

        def swapped(x: Tensor, gate: Tensor) -> Tensor:
            through = gate.new_full((), 1.2784645).expand_as(gate)  # silu of it is 1
            return gated(x, through) * F.silu(gate)

        norm.forward = swapped  # type: ignore[method-assign]

    each(model, GatedNorm, change)


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="norm epsilon x 10", apply=norm_eps, std=SMALL)
    yield Mutant(name="norm weights off by 1", apply=norm_weight)
    yield Mutant(name="no biases on the linears", apply=no_bias)
    yield Mutant(name="no biases on the filters", apply=no_filter_bias)
    yield Mutant(name="filters backwards", apply=filters_backwards)
    yield Mutant(name="no silu after the convolution", apply=no_activation)
    yield Mutant(name="one norm over all groups", apply=one_group)
    yield Mutant(name="gate after the norm", apply=gate_after_norm)
    yield Mutant(name="B and C exchanged", apply=scanned(b=lambda a: a["c"], c=lambda a: a["b"]))
    yield Mutant(name="groups exchanged", apply=scanned(b=lambda a: a["b"].flip(1).contiguous()))
    yield Mutant(name="no D", apply=scanned(d=lambda a: a["d"] * 0))
    yield Mutant(name="no bias on the time step", apply=scanned(dt_bias=lambda a: a["d"] * 0))
    yield Mutant(name="A without its exponential", apply=scanned(a=lambda a: (-a["a"]).log()))
    yield Mutant(name="no limit to the time step", apply=scanned(limit=lambda a: (0.0, math.inf)))
