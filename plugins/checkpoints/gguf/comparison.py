"""Compare two models without weights: their modules, shapes and settings."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import isclose
from typing import Any

import torch

from ostro import nn
from ostro.ops import rope_frequencies

PLAIN = (bool, int, float, str, type(None))

MEDIA = ("spans", "placeholders")
"""Attributes of modules that concern media."""

EPSILON = 1e-5
"""Epsilons of norms up to this size may differ: llama.cpp has one for all norms."""

LONG = 1 << 20
"""A context beyond that of training, for ropes with a rule for long contexts."""


def differences(
    model: nn.Module, stated: nn.Module, partial: Collection[nn.Module] = ()
) -> list[str]:
    """The differences of a model's modules from those of another one that has only its text.

    Modules that only `model` has belong to media. Modules of `partial` are not compared: the
    file has a part of their weights.
    """
    ours, theirs = dict(model.named_modules()), dict(stated.named_modules())
    found = [f"{path} is missing" for path in theirs.keys() - ours.keys()]
    for path, module in theirs.items():
        if path in ours and ours[path] not in partial:
            found += (f"{path}.{what}" for what in settings(ours[path], module))
    return sorted(found)


def settings(ours: nn.Module, theirs: nn.Module) -> Iterator[str]:
    """The differences of two modules in their parameters and plain attributes."""
    if isinstance(ours, nn.Rope) and isinstance(theirs, nn.Rope):
        if not same_rope(ours, theirs):
            yield f"rule is {ours.rule}, the file states {theirs.rule}"
        return
    shapes = [
        {name: tuple(each.shape) for name, each in module.named_parameters(recurse=False)}
        for module in (ours, theirs)
    ]
    if shapes[0] != shapes[1]:
        yield f"parameters are {shapes[0]}, the file states {shapes[1]}"
    a, b = vars(ours), vars(theirs)
    for name in sorted(a.keys() & b.keys()):
        tiny = name == "eps" and max(a[name], b[name]) <= EPSILON * (1 + EPSILON)
        if not (name.startswith("_") or name in MEDIA or tiny or same(a[name], b[name])):
            yield f"{name} is {a[name]!r:.60}, the file states {b[name]!r:.60}"


def same(a: Any, b: Any) -> bool:
    """Whether two attributes are equal, floats within float32; other objects are not compared."""
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, frozenset) and isinstance(b, frozenset):
        return a == b
    if not (isinstance(a, PLAIN) and isinstance(b, PLAIN)):
        return True
    if isinstance(a, float) and isinstance(b, float):
        return isclose(a, b, rel_tol=1e-6)
    return a == b


def same_rope(ours: nn.Rope, theirs: nn.Rope) -> bool:
    """Whether two ropes rotate by the same angles, at short and at long contexts.

    Without media, all sections of a rope have the same position.
    """
    if ours.head_dim != theirs.head_dim or theirs.sections not in (None, ours.sections):
        return False
    for context in (1, LONG):
        (a, x), (b, y) = (
            rope_frequencies(rope.rule, rope.head_dim, context) for rope in (ours, theirs)
        )
        if a.shape != b.shape or not torch.allclose(a, b, rtol=1e-5, atol=0):
            return False
        if not isclose(x, y, rel_tol=1e-5):
            return False
    return True
