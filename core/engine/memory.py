"""The memory planner: how many cache blocks fit, decided once, before the first request."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ostro.core.cache import CacheKind
from ostro.core.device import format_bytes, free_bytes, parse_size
from ostro.core.errors import InsufficientMemory
from ostro.core.records import Settings

BLOCK = {"cuda": 16, "cpu": 64}
"""Tokens per block: small where gathers are cheap, longer contiguous runs on CPU."""

SHARE = {"cuda": 0.9, "cpu": 0.25}


def budget(settings: Settings, device: torch.device) -> int:
    """Bytes for the cache: what --memory says, else a share of what is free."""
    free = free_bytes(device)
    asked = parse_size(settings.memory) if settings.memory else SHARE[device.type]
    size = int(asked * free) if asked <= 1 else int(asked)
    if size > free:
        raise InsufficientMemory(
            f"--memory {settings.memory} asks for {format_bytes(size)} of cache, "
            f"{format_bytes(free)} are free on {device}"
        )
    return size


def largest_context(
    kinds: Sequence[CacheKind], size: int, context: int, rows: int, block: int
) -> int:
    """The longest context, halved from the model's own, of which one sequence fits `size` bytes."""
    while context > 2 * block and sum(k.bytes(k.blocks_of(context, rows)) for k in kinds) > size:
        context //= 2
    return context


def plan_blocks(
    kinds: Sequence[CacheKind], size: int, context: int, rows: int, seqs: int
) -> list[int]:
    """Blocks per group within `size` bytes: enough for every sequence, or evenly less of all."""
    least = [kind.blocks_of(context, rows) for kind in kinds]
    wants = [seqs * (n + kind.spare) for kind, n in zip(kinds, least, strict=True)]
    needed = sum(kind.bytes(want) for kind, want in zip(kinds, wants, strict=True))
    if needed <= size:
        return wants
    smallest = sum(kind.bytes(n) for kind, n in zip(kinds, least, strict=True))
    if smallest > size:
        raise InsufficientMemory(
            f"one sequence of {context} tokens needs {format_bytes(smallest)} of cache and "
            f"there are {format_bytes(size)}; try a smaller --context, or more --memory"
        )
    share = (size - smallest) / max(needed - smallest, 1)
    return [low + int((want - low) * share) for low, want in zip(least, wants, strict=True)]
