"""Tile sizes of the Triton matrix products with quantized weights, per kind of GPU.

A file `configs/<name of the GPU>.json` overrides fields of `Tuning` with measured values; without
one, the defaults here apply. It is read once per GPU.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton

from ostro.ops import target_family
from ostro.quant.planes.quant_matmul.weight import TritonWeight

CONFIGS = Path(__file__).parent / "configs"


class Tile(NamedTuple):
    """A program of a tile kernel: rows of x, rows of the weight, cells per step, warps, stages.

    `programs` occupy a GPU: a sum is split over k while there are fewer.
    """

    m: int
    n: int
    cells: int
    warps: int
    stages: int
    programs: int


class Tuning(NamedTuple):
    """Limits and tile sizes.

    gemv_rows        most rows of x for the vector kernels
    float_rows       rows of x per program of the vector kernels that do not quantize x, and the
                     most 16-bit rows for these
    gemv_block_rows  rows of x per program of a vector kernel
    gemm_rows        most rows of x for tiles; beyond, weights are dequantized first
    tiles            tiles by rows of x, ascending: n is a multiple of 16 warps, cells of four
    """

    gemv_rows: int = 8
    float_rows: int = 4
    gemv_block_rows: int = 8
    gemm_rows: int = 512
    tiles: Sequence[Sequence[int]] = (
        Tile(16, 64, 4, 4, 3, programs=256),
        Tile(32, 64, 4, 4, 3, programs=256),
        Tile(64, 64, 4, 4, 3, programs=256),
    )


FAMILIES = {
    "sm_75": Tuning(gemv_block_rows=4),
    "sm_89": Tuning(
        float_rows=2,
        tiles=(Tile(16, 64, 4, 4, 2, programs=256), *Tuning().tiles[1:]),
    ),
    # Measured on an H200.
    "sm_90": Tuning(
        gemv_rows=4,
        tiles=(
            Tile(16, 64, 8, 4, 3, programs=512),
            Tile(32, 64, 8, 4, 2, programs=512),
            Tile(64, 128, 4, 8, 3, programs=132),
            Tile(128, 64, 4, 4, 3, programs=384),
            Tile(256, 128, 4, 8, 3, programs=132),
        ),
    ),
    "gfx1100": Tuning(tiles=(Tile(16, 64, 4, 4, 3, programs=256),)),
}
"""GPUs on which the default sizes would spill registers, or others are faster."""


LONG = 256
"""Cells of a row of the weight beyond which a program has one row."""


class GemvBlock(NamedTuple):
    """A program of a vector kernel: rows of the weight, cells of each per step, warps."""

    rows: int
    cells: int
    warps: int


def read_config(name: str) -> dict[str, Any]:
    """The measured values of the GPU of that name ("NVIDIA H200"); empty without a file."""
    path = CONFIGS / f"{name.lower().replace(' ', '_')}.json"
    config: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return config


def tuning() -> Tuning:
    """The tuning of the current GPU."""
    # A current GPU is known once a tensor is on one; asking earlier would create a context.
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    return tuning_of(target_family(), device)


@cache
def tuning_of(family: str, device: int | None) -> Tuning:
    """The tuning of a family of GPUs, with the measured values of the device."""
    config = {} if device is None else read_config(torch.cuda.get_device_name(device))
    return FAMILIES.get(family, Tuning())._replace(**config)


def assembler() -> str:
    """The instruction set for inline assembly, "cuda" or "hip"; "" in Triton's interpreter."""
    family = target_family()
    return "" if family == "interpreter" else "hip" if family.startswith("gfx") else "cuda"


def tensor_cores(dtype: torch.dtype) -> bool:
    """Return whether tiles use tensor cores; without them, tiles are slow and spill registers."""
    return dtype.itemsize == 2 and target_family() != "sm_75"


def gemv_block(weight: TritonWeight, rows: int, *, floats: bool) -> GemvBlock:
    """The program size for `rows` rows of x: a lane has one cell of each row at a time.

    The sizes are the fastest on an H200: many programs of one warp, with a single row of the weight
    where it is long.
    """
    warp = 64 if target_family() == "gfx942" else 32
    if floats:
        cells = min(128, max(warp, triton.next_power_of_2(weight.cells)))
        return GemvBlock(rows=2, cells=cells, warps=cells // warp)
    return GemvBlock(rows=1 if rows <= 2 and weight.cells > LONG else 2, cells=warp, warps=1)


TABLE_ROWS = 32
"""The most rows of x of a tile of weights with a table of floats, which takes many registers."""


def tile_limit(weight: TritonWeight) -> int:
    """The most rows of x for tiles; beyond, weights are dequantized first."""
    return tuning().gemm_rows if weight.tensors.table is None else 2 * TABLE_ROWS


def tile(weight: TritonWeight, rows: int) -> Tile:
    """The smallest tile for `rows` rows of x, or of each expert; the largest for more rows."""
    tiles = [Tile(*sizes) for sizes in tuning().tiles]
    if weight.tensors.table is not None:
        tiles = [size for size in tiles if size.m <= TABLE_ROWS]
    size = next((size for size in tiles if size.m >= rows), tiles[-1])
    # Values of other codes are computed in float32, in twice the registers.
    return size if weight.layout.bytes else size._replace(cells=4, stages=2)


def split_k(tiles: int, cells: int, tile: Tile) -> int:
    """Parts to split the sum of each tile into, so that the GPU is occupied: a power of two."""
    split = 1
    # A part must be at least as long as the pipeline that loads it.
    least = tile.cells * tile.stages
    while tiles * split * 2 <= tile.programs and cells >= split * 2 * least:
        split *= 2
    return split
