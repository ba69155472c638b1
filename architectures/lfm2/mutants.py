"""Mutants of lfm2: porting bugs that its parity test must detect."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ostro import Mutant, Step, nn
from ostro.architectures.lfm2.model import ShortConv
from ostro.testing import each


def parts(order: tuple[int, int, int]) -> Callable[[nn.Model], None]:
    """Split B, C and x in another order."""

    def change(conv: ShortConv) -> None:
        forward = conv.in_proj.forward

        def swapped(x: Tensor, step: Step) -> Tensor:
            chunks = forward(x, step).chunk(3, -1)
            return torch.cat([chunks[i] for i in order], -1)

        conv.in_proj.forward = swapped  # type: ignore[method-assign]

    return lambda model: each(model, ShortConv, change)


def activated(model: nn.Model) -> None:
    """Apply SiLU after the convolution, as in the Mamba family."""

    def change(conv: ShortConv) -> None:
        plain = conv.convolve.kernel
        conv.convolve.kernel = lambda *args: plain(*args, "silu")

    each(model, ShortConv, change)


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="B and C exchanged", apply=parts((1, 0, 2)))
    yield Mutant(name="C and x exchanged", apply=parts((0, 2, 1)))
    yield Mutant(name="silu after the convolution", apply=activated)
