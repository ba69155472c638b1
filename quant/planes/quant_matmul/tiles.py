"""Tile sizes of the Triton matrix products with quantized weights, per kind of GPU.

A file `configs/<name of the GPU>.json` overrides fields of `Tuning` with measured values; without
one, the defaults here apply. It is read once per GPU.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton

from ostro.ops import target_family
from ostro.quant.planes.quant_matmul.weight import TritonWeight

CONFIGS = Path(__file__).parent / "configs"


class Tuning(NamedTuple):
    """Limits and tile sizes.

    gemv_rows        most rows of x for the vector kernels
    float_rows       rows of x per program of the vector kernels that do not quantize x, and the
                     most 16-bit rows for these
    gemv_block_rows  rows of x per program of a vector kernel
    gemm_rows        most rows of x for tiles; beyond, weights are dequantized first
    block_m          most rows of x per tile
    block_n          rows of the weight per tile
    block_cells      cells of 32 columns per step of a tile; half as many beyond 32 rows of x
    num_warps, num_stages  of a tile
    wide_m           most rows of x per wide tile, for more than block_m rows; 0 without these
    wide_n, wide_cells, wide_warps  of a wide tile, as above
    programs         programs of num_warps that occupy a GPU
    """

    gemv_rows: int = 8
    float_rows: int = 4
    gemv_block_rows: int = 8
    gemm_rows: int = 512
    block_m: int = 64
    block_n: int = 64
    block_cells: int = 4
    num_warps: int = 4
    num_stages: int = 3
    wide_m: int = 0
    wide_n: int = 128
    wide_cells: int = 2
    wide_warps: int = 8
    programs: int = 256


FAMILIES = {
    "sm_75": Tuning(gemv_block_rows=4),
    "sm_89": Tuning(float_rows=2, block_m=32),
    "sm_90": Tuning(wide_m=256),
    "gfx1100": Tuning(block_m=16, block_cells=2),
}
"""GPUs on which the default sizes would spill registers, or larger ones do not."""


LONG = 256
"""Cells of a row of the weight beyond which a program has one row."""


class GemvBlock(NamedTuple):
    """A program of a vector kernel: rows of the weight, cells of each per step, warps."""

    rows: int
    cells: int
    warps: int


class Tile(NamedTuple):
    """A program of a tile kernel: rows of x, rows of the weight, cells per step, warps, stages."""

    m: int
    n: int
    cells: int
    warps: int
    stages: int


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
    if triton.knobs.runtime.interpret:
        return ""
    return str(triton.runtime.driver.active.get_current_target().backend)


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


def tile(rows: int) -> Tile:
    """The tile for `rows` rows of x, or of each expert."""
    config = tuning()
    m = max(16, min(config.block_m, triton.next_power_of_2(rows)))
    cells = config.block_cells // (2 if m > 32 else 1)
    return Tile(m, config.block_n, cells, config.num_warps, config.num_stages)


def wide_tile(rows: int) -> Tile:
    """As `tile`, of more rows if the GPU has wide tiles: a weight is dequantized for each tile."""
    config = tuning()
    if rows <= config.block_m or not config.wide_m:
        return tile(rows)
    m = min(config.wide_m, triton.next_power_of_2(rows))
    return Tile(m, config.wide_n, config.wide_cells, config.wide_warps, config.num_stages)


def split_k(tiles: int, cells: int, block: Tile) -> int:
    """Parts to split the sum of each tile into, so that the GPU is occupied: a power of two."""
    split, config = 1, tuning()
    programs = config.programs * config.num_warps // block.warps
    # A part must be at least as long as the pipeline that loads it.
    least = block.cells * block.stages
    while tiles * split * 2 <= programs and cells >= split * 2 * least:
        split *= 2
    return split
