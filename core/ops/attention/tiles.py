"""Tile sizes of the Triton attention kernel per GPU family: the largest without register spills."""

from __future__ import annotations

from bisect import bisect_left
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import torch


class Tiles(NamedTuple):
    """Launch parameters: rows per program, keys per iteration, warps, pipeline stages."""

    rows: int
    keys: int
    warps: int
    stages: int


# By GPU family, for 16 rows and for more, then by head width up to 64, 128, 256, 512: of the sizes
# tried, the largest that triton 3.7.1 and 3.9.0 compile without register spills for any features.
# On AMD, a second stage would hold the next keys in registers.
# fmt: off
TILES = {
    "sm_75": (
        (Tiles(16, 16, 4, 1), Tiles(16, 16, 4, 1), Tiles(16, 16, 8, 1), Tiles(16, 16, 8, 1)),
        (Tiles(16, 16, 4, 1), Tiles(16, 16, 4, 1), Tiles(16, 16, 8, 1), Tiles(16, 16, 8, 1)),
    ),
    "sm_80": (
        (Tiles(16, 32, 4, 5), Tiles(16, 32, 4, 5), Tiles(16, 32, 4, 5), Tiles(16, 32, 4, 3)),
        (Tiles(128, 64, 8, 5), Tiles(128, 32, 8, 3), Tiles(64, 32, 8, 3), Tiles(32, 32, 8, 3)),
    ),
    "sm_89": (
        (Tiles(16, 32, 4, 5), Tiles(16, 32, 4, 5), Tiles(16, 32, 4, 5), Tiles(16, 32, 4, 2)),
        (Tiles(128, 64, 8, 5), Tiles(128, 32, 8, 3), Tiles(64, 32, 8, 3), Tiles(16, 32, 4, 2)),
    ),
    "sm_90": (
        (Tiles(16, 32, 4, 5), Tiles(16, 32, 4, 5), Tiles(16, 32, 4, 5), Tiles(16, 32, 4, 3)),
        (Tiles(128, 64, 8, 5), Tiles(128, 64, 8, 5), Tiles(128, 64, 8, 3), Tiles(32, 32, 8, 3)),
    ),
    "sm_100": (
        (Tiles(16, 32, 4, 5), Tiles(16, 32, 4, 5), Tiles(16, 32, 4, 5), Tiles(16, 32, 4, 3)),
        (Tiles(128, 64, 8, 5), Tiles(128, 64, 8, 5), Tiles(64, 32, 8, 3), Tiles(32, 32, 8, 3)),
    ),
    "gfx942": (
        (Tiles(16, 32, 4, 2), Tiles(16, 32, 4, 2), Tiles(16, 32, 4, 2), Tiles(16, 16, 4, 2)),
        (Tiles(64, 64, 4, 2), Tiles(128, 32, 8, 2), Tiles(64, 32, 8, 2), Tiles(16, 16, 4, 2)),
    ),
    "gfx1100": (
        (Tiles(16, 32, 4, 2), Tiles(16, 32, 4, 1), Tiles(16, 16, 8, 1), Tiles(16, 16, 8, 1)),
        (Tiles(64, 32, 4, 2), Tiles(64, 32, 8, 1), Tiles(32, 16, 8, 1), Tiles(16, 16, 8, 1)),
    ),
    "interpreter": (
        (Tiles(16, 32, 1, 1),) * 4,
        (Tiles(32, 32, 1, 1),) * 4,
    ),
}
# fmt: on
TILES["sm_86"] = TILES["sm_89"]

# Smaller tiles for one-byte elements, whose casts and scales need registers: by GPU family, whether
# there are more than 16 rows, and index of the head width.
BYTES = {
    ("sm_86", False, 3): Tiles(16, 16, 4, 2),
    ("sm_89", False, 3): Tiles(16, 16, 4, 2),
    ("sm_100", True, 1): Tiles(128, 64, 8, 3),
    ("sm_100", True, 2): Tiles(64, 64, 4, 2),
    ("gfx942", True, 2): Tiles(64, 32, 8, 1),
}

# The same for head widths that are not a power of two: the remainder needs a second product.
TAILS = {("sm_90", False, 1): Tiles(16, 32, 4, 4)}


def target_family() -> str:
    """The key of the current GPU in TILES."""
    import triton  # here: programs on the CPU import this module, and Triton takes 0.4 s

    if triton.knobs.runtime.interpret:
        return "interpreter"
    driver = triton.runtime.driver.active
    return family_of(driver, driver.get_current_device())


@cache
def family_of(driver: Any, device: int) -> str:
    """The key of a device of a Triton driver in TILES. Cached: each launch asks for it."""
    target = driver.get_current_target()
    if target.backend == "hip":
        return "gfx942" if target.arch.startswith("gfx9") else "gfx1100"
    if target.arch in (80, 90):
        return f"sm_{target.arch}"
    if target.arch < 89:
        return "sm_75" if target.arch < 80 else "sm_86"
    return "sm_100" if 100 <= target.arch < 120 else "sm_89"


def choose_tiles(
    family: str, dtype: torch.dtype, stored: torch.dtype, width: int, wide: bool
) -> Tiles:
    """Return the tiles for heads of `width`; `wide` means more than 16 rows per kv head.

    Elements that are cast need registers for two types, as if the head had twice the width. A
    float32 product consists of three products and serves as a check of others: its tile is small.
    """
    if dtype == torch.float32:
        if family == "sm_100":
            return Tiles(16, 32, 8, 1)
        return Tiles(16, 16, 4, 2) if family.startswith("sm") else Tiles(16, 16, 8, 1)
    at = bisect_left((64, 128, 256), width * (1 + (stored != dtype)))
    place = (family, wide, at)
    if stored.itemsize == 1 and place in BYTES:
        return BYTES[place]
    if width & (width - 1) and place in TAILS:
        return TAILS[place]
    return TILES[family][wide][at]


def candidate_tiles(tiles: Tiles, wide: bool) -> list[Tiles]:
    """The tiles that may be faster than these; `wide` as in `choose_tiles`."""
    rows = (64, 128) if wide else (tiles.rows,)
    keys = (32, 64, 128)
    warps = (4, 8) if wide else (2, 4, 8)
    sizes = product(rows, keys, warps, (2, 3, 4))
    return [Tiles(*size) for size in sizes if not (wide and size[1] == 128 and size[3] == 4)]
