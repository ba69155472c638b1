"""Mutants of Idefics 3: porting bugs that its parity test must detect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from ostro import Mutant, nn
from ostro.architectures.idefics3.model import Connector, Embeddings, Model
from ostro.architectures.llava.mutants import rows_late
from ostro.architectures.siglip import mutants as siglip
from ostro.testing import each

ONLY = ("tower: positions one patch late",)
"""Mutants of SigLIP that do not apply: its module of embeddings is another."""


def positions_late(model: Model) -> None:
    """Positions one patch late."""

    def change(embeddings: Embeddings) -> None:
        places = embeddings.places
        embeddings.places = lambda: places().roll(1)  # type: ignore[method-assign]

    each(model, Embeddings, change)


def columns_first(model: nn.Model) -> None:
    """Concatenate the patches of a cell column by column."""

    def change(connector: Connector) -> None:
        gather = connector.gather

        def spoil(x: Tensor) -> Tensor:
            s = connector.scale
            return gather(x).unflatten(2, (s, s, -1)).transpose(2, 3).flatten(2)

        connector.gather = spoil  # type: ignore[method-assign]

    each(model, Connector, change)


def consecutive_patches(model: nn.Model) -> None:
    """Merge patches that follow each other in a row."""

    def change(connector: Connector) -> None:
        connector.gather = lambda x: x.unflatten(  # type: ignore[method-assign]
            1, (-1, connector.scale**2)
        ).flatten(2)

    each(model, Connector, change)


def channel_outermost(model: nn.Model) -> None:
    def change(connector: Connector) -> None:
        gather = connector.gather
        connector.gather = lambda x: (  # type: ignore[method-assign]
            gather(x).unflatten(2, (connector.scale**2, -1)).mT.flatten(2)
        )

    each(model, Connector, change)


def whole_first(model: Model) -> None:
    """Place the whole image before its tiles."""
    encode = model.encode
    embeddings: Any = model.vision_model.embeddings
    rows = (embeddings.side // model.connector.scale) ** 2
    model.encode = lambda media, step: [  # type: ignore[method-assign]
        (x.roll(rows, 0),) for (x,) in encode(media, step)
    ]


def mutants() -> Iterator[Mutant]:
    yield from (mutant for mutant in siglip.mutants() if mutant.name not in ONLY)
    yield Mutant(name="positions one patch late", apply=positions_late)
    yield Mutant(name="features one row late", apply=rows_late)
    yield Mutant(name="cells: columns first", apply=columns_first)
    yield Mutant(name="cells: consecutive patches", apply=consecutive_patches)
    yield Mutant(name="cells: the channel outermost", apply=channel_outermost)
    yield Mutant(name="tiles: the whole image first", apply=whole_first)
