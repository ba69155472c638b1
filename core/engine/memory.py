"""The memory planner: computes the number of cache blocks, once, before the first request."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ostro.core.cache import CacheKind
from ostro.core.device import format_bytes, free_bytes, parse_size
from ostro.core.errors import InsufficientMemory
from ostro.core.records import Settings

BLOCK = {"cuda": 16, "cpu": 64}
"""Tokens per block: small on GPUs, where gathers are cheap; longer contiguous runs on CPU."""

SHARE = {"cuda": 0.9, "cpu": 0.25}
"""The default share of free memory for the cache: other programs share the memory of a CPU."""


def budget(settings: Settings, device: torch.device) -> int:
    """Bytes for the cache: --memory, or by default a share of the free memory.

    Raises InsufficientMemory if --memory exceeds the free memory.
    """
    free = free_bytes(device)
    memory = parse_size(settings.memory) if settings.memory else SHARE[device.type]
    size = int(memory * free) if memory <= 1 else int(memory)
    if size > free:
        raise InsufficientMemory(
            f"--memory {settings.memory}: {format_bytes(size)} of cache requested, "
            f"{format_bytes(free)} free on {device}; use a smaller --memory"
        )
    return size


def largest_context(
    kinds: Sequence[CacheKind], size: int, context: int, rows: int, block: int
) -> int:
    """The model's context, halved until the cache of one sequence fits `size` bytes."""
    while context > 2 * block and sum(k.bytes(k.blocks_of(context, rows)) for k in kinds) > size:
        context //= 2
    return context


def plan_blocks(
    kinds: Sequence[CacheKind], size: int, context: int, rows: int, seqs: int
) -> list[int]:
    """Blocks per group within `size` bytes, for up to `seqs` sequences of `context` tokens.

    If that is too much, all groups get the same share of it. Raises InsufficientMemory if not even
    one sequence fits.
    """
    minimum = [kind.blocks_of(context, rows) for kind in kinds]
    maximum = [seqs * (n + kind.spare) for kind, n in zip(kinds, minimum, strict=True)]
    largest = sum(kind.bytes(n) for kind, n in zip(kinds, maximum, strict=True))
    if largest <= size:
        return maximum
    smallest = sum(kind.bytes(n) for kind, n in zip(kinds, minimum, strict=True))
    if smallest > size:
        raise InsufficientMemory(
            f"one sequence of {context} tokens needs {format_bytes(smallest)} of cache and "
            f"there are {format_bytes(size)}; try a smaller --context, or more --memory"
        )
    # Between the two, not in proportion to `maximum`: a group below its minimum runs no sequence.
    share = (size - smallest) / max(largest - smallest, 1)
    return [low + int((high - low) * share) for low, high in zip(minimum, maximum, strict=True)]
