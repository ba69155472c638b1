"""Factors as they are taken out of a file, looked at before anything is believed of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ostro import Container, LowRank, errors

FLOATS = ("F32", "F16", "BF16")


def finite(file: str, container: Container, name: str) -> Tensor:
    """A tensor of floats, each of which is a number."""
    format = container.tensors[name].format
    if format not in FLOATS:
        raise errors.AdapterError(
            f"{file}: tensor {name!r} is {format}; adapters are read in {', '.join(FLOATS)}: save "
            "it again in one of them"
        )
    tensor = container.read(name)
    if not bool(torch.isfinite(tensor).all()):
        raise errors.AdapterError(
            f"{file}: tensor {name!r} holds NaN or infinity; training diverged, take an earlier "
            "checkpoint"
        )
    return tensor


def number(file: str, key: str, value: Any) -> float:
    """A finite number that a file says under a key."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise errors.AdapterError(f"{file}: {key} must be a finite number, not {value!r:.80}")
    return float(value)


def positive(file: str, key: str, value: Any) -> int:
    """A rank or another count that a file says under a key: 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise errors.AdapterError(
            f"{file}: {key} must be a whole number above 0, not {value!r:.80}"
        )
    return value


def both(file: str, module: str, names: Mapping[str, str], a: str, b: str) -> None:
    """Raise AdapterError where of a module's two factors one is absent."""
    for one, other in ((a, b), (b, a)):
        if one in names and other not in names:
            raise errors.AdapterError(
                f"{file}: {names[one]!r} has no {other} beside it (module {module}); the file is "
                "incomplete, save the adapter again"
            )


def low_rank(
    file: str,
    module: str,
    a: Tensor,
    b: Tensor,
    scale: float,
    *,
    rank: int | None = None,
    bias: Tensor | None = None,
    magnitude: Tensor | None = None,
) -> LowRank:
    """The factors a [r, k] and b [n, r] of a module, or of its experts [e, r, k] and [e, n, r].

    Those of a convolution, a [r, in, *kernel] and b [n, r, 1, ...], come flat as [r, in * kernel]
    and [n, r]. Raises AdapterError where they do not fit each other, or the rank.
    """
    shapes = f"A {[*a.shape]} and B {[*b.shape]}"
    if a.dim() > 2 and a.dim() == b.dim() and all(n == 1 for n in b.shape[2:]):
        a, b = a.flatten(1), b.flatten(1)
    return _checked(
        file, module, shapes, rank, LowRank(a=a, b=b, scale=scale, bias=bias, magnitude=magnitude)
    )


def stacked(
    file: str, module: str, a: Tensor, b: Tensor, scale: float, rank: int | None = None
) -> LowRank:
    """The factors of stacked experts, a [e, r, k] and b [e, n, r]."""
    shapes = f"A {[*a.shape]} and B {[*b.shape]}"
    return _checked(file, module, shapes, rank, LowRank(a=a, b=b, scale=scale))


def _checked(file: str, module: str, shapes: str, rank: int | None, made: LowRank) -> LowRank:
    a, b = made.a, made.b
    if (
        a.dim() not in (2, 3)
        or a.dim() != b.dim()
        or a.shape[:-2] != b.shape[:-2]
        or a.shape[-2] != b.shape[-1]
        or 0 in (*a.shape, *b.shape)
    ):
        raise errors.AdapterError(f"{file}: {module}: {shapes} are not two factors of one matrix")
    if rank is not None and a.shape[-2] != rank:
        raise errors.AdapterError(
            f"{file}: {module}: {shapes} are not of rank {rank}, which the config says (r and "
            "rank_pattern)"
        )
    if not math.isfinite(made.scale):
        raise errors.AdapterError(f"{file}: {module}: its scale is {made.scale}")
    for name, vector in (("bias", made.bias), ("magnitude", made.magnitude)):
        if vector is not None and vector.shape != b.shape[-2:-1]:
            raise errors.AdapterError(
                f"{file}: {module}: its {name} {[*vector.shape]} has not the {b.shape[-2]} rows "
                f"of B {[*b.shape]}"
            )
    return made
