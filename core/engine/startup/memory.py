"""The memory planner: divides the memory of devices among caches, before they are allocated."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ostro.core.cache import CacheKind
from ostro.core.device import format_bytes, free_bytes, parse_size
from ostro.core.errors import InsufficientMemory
from ostro.core.settings import Settings

BLOCK = {"cuda": 16, "cpu": 64}
"""Tokens per block: small on GPUs, where gathers are cheap; longer contiguous runs on CPU."""

ROWS = {"cuda": 4096, "cpu": 512}
"""Rows of one step: enough to fill the device, few enough that decodes do not wait long."""

SHARE = {"cuda": 0.9, "cpu": 0.25}
"""The default share of free memory for the cache: other programs share the memory of a CPU."""


def budget(settings: Settings, device: torch.device, free: int | None = None) -> int:
    """Bytes for the cache: --memory, or by default a share of the free memory.

    `free` are the free bytes if the caller knows them. Raises InsufficientMemory if --memory
    exceeds the free memory.
    """
    free = free_bytes(device) if free is None else free
    memory = parse_size(settings.memory) if settings.memory else SHARE[device.type]
    size = int(memory * free) if memory <= 1 else int(memory)
    if size > free:
        raise InsufficientMemory(
            f"--memory {settings.memory}: {format_bytes(size)} of cache requested, "
            f"{format_bytes(free)} free on {device}; use a smaller --memory"
        )
    return size


def cache_budgets(
    models: Sequence[tuple[Settings, int]], device: torch.device, free: int
) -> list[int]:
    """Bytes for the cache of each model on a device of `free` bytes.

    `models` have their settings and the most bytes that their caches can use. Models with --memory
    get that. The others share the default part of what is left, in proportion to these bytes.
    Raises InsufficientMemory if --memory exceeds the free memory.
    """
    sizes = dict[int, int]()
    for index, (settings, _) in enumerate(models):
        if settings.memory:
            sizes[index] = budget(settings, device, free - sum(sizes.values()))
    left = int(SHARE[device.type] * max(free - sum(sizes.values()), 0))
    needs = {i: need for i, (_, need) in enumerate(models) if i not in sizes}
    total = max(sum(needs.values()), 1)
    # Python's integers: the products exceed 64 bits.
    sizes |= {i: min(need, left * need // total) for i, need in needs.items()}
    return [sizes[i] for i in range(len(models))]


def check_weights(needed: int, free: int, device: torch.device) -> None:
    """Raise InsufficientMemory if the weights of a model exceed the free memory of a device."""
    if needed > free:
        raise InsufficientMemory(
            f"its weights need {format_bytes(needed)} ({needed} bytes) and {format_bytes(free)} "
            f"({free} bytes) are free on {device}; unload a model, or load it with --quant"
        )


def most_bytes(kinds: Sequence[CacheKind], context: int, rows: int, seqs: int) -> int:
    """The most bytes that `seqs` sequences of `context` tokens can use."""
    counts = maximum(kinds, context, rows, seqs)
    return sum(kind.bytes(n) for kind, n in zip(kinds, counts, strict=True))


def maximum(kinds: Sequence[CacheKind], context: int, rows: int, seqs: int) -> list[int]:
    """Blocks per group for `seqs` sequences of `context` tokens."""
    return [seqs * (kind.blocks_of(context, rows) + kind.spare) for kind in kinds]


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
    most = maximum(kinds, context, rows, seqs)
    largest = most_bytes(kinds, context, rows, seqs)
    if largest <= size:
        return most
    smallest = sum(kind.bytes(n) for kind, n in zip(kinds, minimum, strict=True))
    if smallest > size:
        raise InsufficientMemory(
            f"one sequence of {context} tokens needs {format_bytes(smallest)} of cache and "
            f"there are {format_bytes(size)}; try a smaller --context, or more --memory"
        )
    # Between the two, not in proportion to `most`: a group below its minimum runs no sequence.
    share = (size - smallest) / max(largest - smallest, 1)
    return [low + int((high - low) * share) for low, high in zip(minimum, most, strict=True)]
