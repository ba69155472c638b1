"""Mutants of Mistral 3: porting bugs that its parity test must detect."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from ostro import Mutant, nn
from ostro.architectures.llava.mutants import layers_off, relu_projector, rows_late
from ostro.architectures.mistral3.model import Model, PatchMerger, Projector
from ostro.architectures.pixtral.mutants import mutants as tower
from ostro.testing import SMALL, each

SHARED = ("tower: images attend to each other",)
"""Mutants of the vision encoder that need several images in one batch."""


def patch_outermost(model: nn.Model) -> None:
    """Concatenate the patches of a cell, the channel innermost."""

    def change(merger: PatchMerger) -> None:
        gather = merger.gather
        merger.gather = lambda x, size: (  # type: ignore[method-assign]
            gather(x, size).unflatten(1, (x.shape[1], -1)).mT.flatten(1)
        )

    each(model, PatchMerger, change)


def consecutive_patches(model: nn.Model) -> None:
    """Merge patches that follow each other in a row."""

    def change(merger: PatchMerger) -> None:
        def gather(x: Tensor, size: tuple[int, int]) -> Tensor:
            return x.view(-1, merger.side**2, x.shape[1]).mT.flatten(1)

        merger.gather = gather  # type: ignore[method-assign]

    each(model, PatchMerger, change)


def no_norm(model: Model) -> None:
    def change(projector: Projector) -> None:
        setattr(projector.norm, "forward", lambda x: (x, x))  # noqa: B010

    each(model, Projector, change)


def norm_eps(model: nn.Model) -> None:
    each(model, Projector, lambda p: setattr(p.norm, "eps", 0.1))


def mutants() -> Iterator[Mutant]:
    yield from (mutant for mutant in tower() if mutant.name not in SHARED)
    yield Mutant(name="features of the layer before", apply=layers_off(-1))
    yield Mutant(name="relu in the projector", apply=relu_projector)
    yield Mutant(name="features one row late", apply=rows_late)
    yield Mutant(name="cells: the patch outermost", apply=patch_outermost)
    yield Mutant(name="cells: consecutive patches", apply=consecutive_patches)
    yield Mutant(name="no norm before the projector", apply=no_norm)
    yield Mutant(name="norm epsilon 0.1 in the projector", apply=norm_eps, std=SMALL)
