"""The memory planner: how many cache blocks fit, decided once, before the first request."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from ostro.core.cache import CacheKind
from ostro.core.errors import InsufficientMemory, UsageError
from ostro.core.records import Settings

BLOCK = {"cuda": 16, "cpu": 64}
"""Tokens per block: small where gathers are cheap, longer contiguous runs on CPU."""

UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
}
SHARE = {"cuda": 0.9, "cpu": 0.25}


def parse_size(text: str) -> float:
    """Bytes ("6GB", "512MiB") or, from 0 to 1, a share ("0.5"). Raises UsageError."""
    number = text.strip().rstrip("BbKkMmGgIi").strip()
    unit = text.strip()[len(number) :].strip().upper()
    try:
        value = float(number) * UNITS[unit]
    except (ValueError, KeyError):
        raise UsageError(
            f"{text!r} is no size: write 6GB, 512MiB, or a share such as 0.5"
        ) from None
    if not 0 < value < 2**60:
        raise UsageError(f"{text!r} is not a positive size")
    return value


def format_bytes(size: int) -> str:
    """Bytes in the unit that people would use."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size} bytes"


def free_bytes(device: torch.device) -> int:
    """Memory that is free now on a device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") + cached_bytes()


def cached_bytes() -> int:
    """Page cache that Linux gives back on demand."""
    try:
        with open("/proc/meminfo") as lines:
            sizes = dict(line.split(":") for line in lines)
        return int(sizes["Cached"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 0


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
