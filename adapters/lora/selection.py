"""Select the target modules and parameters of a LoraConfig, by PEFT's rules (version 0.21)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ostro.adapters.lora import patterns
from ostro.adapters.lora.config import Settings

ORDER = ("gate_up_proj", "gate_proj", "up_proj", "down_proj")
"""Stacked weights of experts in transformers' order of declaration, which is PEFT's of wrapping."""


def selected(settings: Settings, modules: Sequence[str]) -> set[str]:
    """The modules that target_modules selects and that no other key excludes."""
    names = [name for name in modules if not _saved_with(settings, name)]
    targets = settings.targets
    if targets is None:
        found = set() if settings.parameters else set(names)
    elif isinstance(targets, str):
        whole = ".*" if targets.lower() == "all-linear" else targets
        found = _matching("target_modules", whole, names)
    else:
        found = {name for name in names if _ends(name, targets) and _in_layers(settings, name)}
    return found - _excluded(settings, names)


def parameters(settings: Settings, module: str, *, qualified: bool = False) -> list[str]:
    """The names of a module's parameters that target_parameters may select, sorted.

    With `qualified` only from targets that name the module too ("experts.gate_up_proj").
    """
    found = set()
    for target in settings.parameters:
        holder, _, parameter = target.rpartition(".")
        if _ends(module, (holder,)) if holder else not qualified:
            found.add(parameter)
    return sorted(found)


def saved(settings: Settings, tensor: str) -> bool:
    """Whether modules_to_save contains the module of a tensor, or a parent of it."""
    return any(name.endswith(end) for name in _above(tensor) for end in settings.saved)


def _saved_with(settings: Settings, module: str) -> bool:
    return any(f".{name}." in f".{module}." for name in settings.saved)


def _above(tensor: str) -> Iterator[str]:
    while "." in tensor:
        tensor = tensor.rpartition(".")[0]
        yield tensor


def _ends(name: str, ends: Sequence[str]) -> bool:
    return any(name == end or name.endswith(f".{end}") for end in ends)


def _matching(key: str, pattern: str, names: Sequence[str]) -> set[str]:
    found = patterns.first(key, [pattern], names)
    return {name for name, place in zip(names, found, strict=True) if place is not None}


def _excluded(settings: Settings, names: Sequence[str]) -> set[str]:
    if not settings.excluded:
        return set()
    if isinstance(settings.excluded, str):
        return _matching("exclude_modules", settings.excluded, names)
    return {name for name in names if _ends(name, settings.excluded)}


def _in_layers(settings: Settings, name: str) -> bool:
    """Whether a name is in one of layers_to_transform, by the first number of its path.

    A name that target_modules contains in full is selected in any layer.
    """
    if settings.layers is None or name in (settings.targets or ()):
        return True
    lists = settings.lists or (r"[^.]*",)
    for each in lists:
        front = r"(?:^|.*?\.)" if settings.lists else r".*?\."
        if match := re.match(rf"{front}{each}\.(?P<layer>\d+)\.", name):
            return int(match["layer"]) in settings.layers
    return False
