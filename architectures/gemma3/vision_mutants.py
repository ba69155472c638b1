"""Mutants of Gemma 3 with images: porting bugs that its parity test must detect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from ostro import Mutant, nn
from ostro.architectures.gemma3.mutants import mutants as text
from ostro.architectures.gemma3.vision import Model, Projector
from ostro.architectures.llava.mutants import rows_late
from ostro.architectures.siglip.mutants import mutants as tower
from ostro.testing import each

SHARED = ("gelu", "epsilon")
"""Mutants of the vision encoder that the tests of SigLIP detect better."""


def no_pooling(model: nn.Model) -> None:
    """Take the first patches instead of pooling."""

    def change(projector: Projector) -> None:
        rows = (projector.side // projector.pooled) ** 2
        projector.pool = lambda x: x[:, :rows].flatten(0, 1)  # type: ignore[method-assign]

    each(model, Projector, change)


def largest(model: nn.Model) -> None:
    def change(projector: Projector) -> None:
        def pool(x: Tensor) -> Tensor:
            grid = x.mT.unflatten(2, (projector.side, projector.side))
            return F.max_pool2d(grid, projector.pooled).flatten(2).mT.flatten(0, 1)

        projector.pool = pool  # type: ignore[method-assign]

    each(model, Projector, change)


def stripes(model: nn.Model) -> None:
    """Pool consecutive patches instead of squares."""

    def change(projector: Projector) -> None:
        projector.pool = lambda x: (  # type: ignore[method-assign]
            x.unflatten(1, (-1, projector.pooled**2)).mean(2).flatten(0, 1)
        )

    each(model, Projector, change)


def no_projector_norm(model: nn.Model) -> None:
    each(model, Projector, lambda p: setattr(p.mm_soft_emb_norm, "forward", lambda x: (x, x)))


def scaled_features(model: Model) -> None:
    """Scale image features like text embeddings."""
    encode, scale = model.encode, model.model.scale
    model.encode = lambda media, step: [(x * scale,) for (x,) in encode(media, step)]  # type: ignore[method-assign]


def one_direction(model: nn.Model) -> None:
    """Causal attention within an image."""

    def change(attention: nn.Attention) -> None:
        attend = attention.attend

        def causal(q: Tensor, k: Tensor, v: Tensor, batch: Any, *args: Any, **more: Any) -> Tensor:
            host = batch.host and replace(batch.host, full=[], memo=None)
            y: Tensor = attend(q, k, v, replace(batch, full=None, host=host), *args, **more)
            return y

        attention.attend = causal  # type: ignore[assignment]

    each(model, nn.Attention, change)


def mutants() -> Iterator[Mutant]:
    yield from text()
    yield from (m for m in tower() if not any(word in m.name for word in SHARED))
    yield Mutant(name="no pooling", apply=no_pooling)
    yield Mutant(name="the largest of a square instead of its mean", apply=largest)
    yield Mutant(name="means of stripes instead of squares", apply=stripes)
    yield Mutant(name="no norm before the projection", apply=no_projector_norm)
    yield Mutant(name="images scaled as text is", apply=scaled_features)
    yield Mutant(name="causal attention within an image", apply=one_direction)
    yield Mutant(name="features one row late", apply=rows_late)
