"""Mutants of qwen3_5: porting bugs that its parity test must detect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from ostro import Mutant, nn
from ostro.architectures.mixtral.mutants import experts
from ostro.architectures.qwen2_moe.mutants import shared
from ostro.architectures.qwen3_5.model import DeltaNet
from ostro.architectures.qwen3_next.mutants import nets
from ostro.testing import each


def tiled(model: nn.Model) -> None:
    """Assign value heads to key heads in tiled order."""

    def change(net: DeltaNet) -> None:
        plain, share = net.rule.kernel, net.heads // net.key_heads

        def other(q: Tensor, k: Tensor, *args: Any) -> Tensor:
            return plain(q.repeat(1, share, 1), k.repeat(1, share, 1), *args)

        net.rule.kernel = other

    each(model, DeltaNet, change)


def mutants() -> Iterator[Mutant]:
    yield from nets()
    yield Mutant(name="value heads in tiled order", apply=tiled)


def sparse_mutants() -> Iterator[Mutant]:
    yield from mutants()
    yield from experts()
    yield from shared()
