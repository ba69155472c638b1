"""Mutants of Idefics 2: porting bugs that its parity test must detect."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ostro import Mutant, nn
from ostro.architectures.idefics2.model import Attention, Embeddings, Layer, Resampler
from ostro.architectures.llava.mutants import rows_late
from ostro.architectures.siglip import mutants as siglip
from ostro.testing import SMALL, each

OTHERS = ("tower: positions one patch late", "tower: no last norm")
"""Mutants of SigLIP that do not apply: its modules of embeddings and of the tower are others."""


def positions_by_index(model: nn.Model) -> None:
    def change(embeddings: Embeddings) -> None:
        def places(rows: int, columns: int) -> torch.Tensor:
            down, across = (torch.arange(n).clamp(max=embeddings.side - 1) for n in (rows, columns))
            return (down[:, None] * embeddings.side + across).flatten()

        embeddings.places = places  # type: ignore[method-assign]

    each(model, Embeddings, change)


def no_latents(model: nn.Model) -> None:
    """Attend to the patches alone."""
    each(model, Attention, lambda a: setattr(a, "keys", lambda context, latents: context))


def no_context_norm(model: nn.Model) -> None:
    def change(layer: Layer) -> None:
        setattr(layer.input_context_norm, "forward", lambda x: (x, x))  # noqa: B010

    each(model, Layer, change)


def no_last_norm(model: nn.Model) -> None:
    def change(resampler: Resampler) -> None:
        setattr(resampler.norm, "forward", lambda x: (x, x))  # noqa: B010

    each(model, Resampler, change)


def norm_eps(model: nn.Model) -> None:
    each(model, Resampler, lambda r: setattr(r.norm, "eps", 10.0))


def mutants() -> Iterator[Mutant]:
    yield from (mutant for mutant in siglip.mutants() if mutant.name not in OTHERS)
    yield Mutant(name="tower: positions by index", apply=positions_by_index)
    yield Mutant(name="features one row late", apply=rows_late)
    yield Mutant(name="resampler: no latents among the keys", apply=no_latents)
    yield Mutant(name="resampler: no norm of the context", apply=no_context_norm)
    yield Mutant(name="resampler: no last norm", apply=no_last_norm)
    yield Mutant(name="resampler: norm epsilon 10", apply=norm_eps, std=SMALL)
