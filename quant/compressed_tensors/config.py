"""Read the fields of a compressed-tensors config that cannot be derived from the tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

OFFLINE = ("weight_input", "weight_output")
"""Transforms that are already applied to the weights."""


def format_name(settings: Mapping[str, Any]) -> str:
    """The format in a config; for a sparse model, the format of its sparsity config."""
    sparse = nested(settings, "sparsity_config").get("format")
    return str(settings.get("format") if sparse in (None, "dense") else sparse)


def weights(settings: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The quantization schemes of weights; groups that name a preset have none."""
    for group in nested(settings, "config_groups").values():
        if isinstance(group, Mapping):
            yield nested(group, "weights")


def bits(settings: Mapping[str, Any]) -> set[Any]:
    """The bits of weights in all schemes."""
    return {bits for scheme in weights(settings) if (bits := scheme.get("num_bits")) is not None}


def blocks(settings: Mapping[str, Any]) -> list[tuple[int, int]]:
    """The rows and columns of blocks in all schemes."""
    found = []
    for scheme in weights(settings):
        structure = scheme.get("block_structure")
        parts = structure.split("x") if isinstance(structure, str) else structure or ()
        sizes = [int(part) for part in parts if str(part).isdigit()]
        if len(sizes) == 2 and min(sizes) > 0:
            found.append((sizes[0], sizes[1]))
    return found


def online_transforms(settings: Mapping[str, Any]) -> set[str]:
    """The locations at which the model transforms activations at run time."""
    groups = nested(nested(settings, "transform_config"), "config_groups").values()
    locations = [
        str(each.get("location"))
        for group in groups
        if isinstance(group, Mapping)
        for each in group.get("apply") or ()
        if isinstance(each, Mapping)
    ]
    return {*locations} - {*OFFLINE}


def nested(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object in a config; empty if it is missing."""
    found = settings.get(name)
    return found if isinstance(found, Mapping) else {}
