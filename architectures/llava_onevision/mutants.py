"""Mutants of LLaVA-OneVision: porting bugs that its parity test must detect."""

from __future__ import annotations

from collections.abc import Iterator

import torch.nn.functional as F

from ostro import Mutant
from ostro.architectures.llava_next import mutants as llava_next
from ostro.architectures.llava_onevision.model import Model

OMITTED = ("no class token", "no norm before the layers", "video: maximum instead of mean")
"""Mutants of parts that this family does not have."""


def nearest(model: Model) -> None:
    model.scale = lambda x, size: F.interpolate(x, size)  # type: ignore[method-assign]


def corners(model: Model) -> None:
    model.scale = lambda x, size: F.interpolate(  # type: ignore[method-assign]
        x, size, mode="bilinear", align_corners=True
    )


def mutants() -> Iterator[Mutant]:
    yield from (mutant for mutant in llava_next.video_mutants() if mutant.name not in OMITTED)
    yield Mutant(name="scaled: nearest", apply=nearest)
    yield Mutant(name="scaled: aligned corners", apply=corners)
