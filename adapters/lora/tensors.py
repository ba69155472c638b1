"""Read and validate the factors of an adapter file."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ostro import Container, LowRank, errors

FLOATS = ("F32", "F16", "BF16")


def finite(file: str, container: Container, name: str) -> Tensor:
    """A float tensor without NaN and infinity. Raises AdapterError."""
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
    """The finite number of a key. Raises AdapterError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise errors.AdapterError(f"{file}: {key} must be a finite number, not {value!r:.80}")
    return float(value)


def positive(file: str, key: str, value: Any) -> int:
    """The positive integer of a key. Raises AdapterError."""
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise errors.AdapterError(
            f"{file}: {key} must be a whole number above 0, not {value!r:.80}"
        )
    return value


def by_module(
    file: str, names: Iterable[str], pattern: re.Pattern[str], parts: Mapping[str, str], known: str
) -> dict[str, dict[str, str]]:
    """Group tensor names by module and part.

    `pattern` has the groups `module` and `end`; `parts` maps an end to its part, "a" and "b" for
    the factors. Raises AdapterError for a name that does not match, with `known` as its
    description, for two names of one part, and for a module that lacks a factor.
    """
    found: dict[str, dict[str, str]] = {}
    for name in names:
        match = pattern.fullmatch(name)
        if match is None:
            raise errors.AdapterError(f"{file}: tensor {name!r} is {known}")
        mine, part = found.setdefault(match["module"], {}), parts[match["end"]]
        if part in mine:
            raise errors.AdapterError(f"{file}: {mine[part]!r} and {name!r} are the same factor")
        mine[part] = name
    a, b = (" or ".join(end for end, part in parts.items() if part == factor) for factor in "ab")
    for module, mine in found.items():
        both(file, module, {{"a": a, "b": b}.get(p, p): name for p, name in mine.items()}, a, b)
        if "a" not in mine:
            some = next(iter(mine.values()))
            raise errors.AdapterError(f"{file}: tensor {some!r} has no factors beside it")
    return found


def both(file: str, module: str, names: Mapping[str, str], a: str, b: str) -> None:
    """Raise AdapterError if one of a module's two factors is missing."""
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

    Those of a convolution, a [r, in, *kernel] and b [n, r, 1, ...], are flattened to
    [r, in * kernel] and [n, r]. Raises AdapterError if the shapes do not match each other or the
    rank.
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


def _checked(file: str, module: str, shapes: str, rank: int | None, factors: LowRank) -> LowRank:
    a, b = factors.a, factors.b
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
            f"{file}: {module}: {shapes} do not have the rank {rank} of the config (r and "
            "rank_pattern)"
        )
    if not math.isfinite(factors.scale):
        raise errors.AdapterError(f"{file}: {module}: its scale is {factors.scale}")
    for name, vector in (("bias", factors.bias), ("magnitude", factors.magnitude)):
        if vector is not None and vector.shape != b.shape[-2:-1]:
            raise errors.AdapterError(
                f"{file}: {module}: its {name} {[*vector.shape]} has not the {b.shape[-2]} rows "
                f"of B {[*b.shape]}"
            )
    return factors
