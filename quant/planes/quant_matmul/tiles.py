"""Programs of the Triton matrix products with quantized weights, per kind of GPU.

A product of some rows has a `Plan`: blocks of the vector kernel, tiles, or a dense product with the
dequantized weight. The defaults of each family of GPUs are here; `ostro tune --kernels` measures
the alternatives on one GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import NamedTuple, TypeAlias

import torch
import triton
from torch import Tensor

from ostro.ops import launch_parameters, row_class, target_family
from ostro.quant.planes.quant_matmul.weight import TritonWeight


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
    """A program of a vector kernel: rows of x and of the weight, cells of each per step, warps."""

    x_rows: int
    rows: int
    cells: int
    warps: int


class Dequantize(NamedTuple):
    """A dense product with parts of the dequantized weight, of at most so many elements."""

    elements: int = 1 << 27


Plan: TypeAlias = GemvBlock | Tile | Dequantize
"""How a product runs."""


def tuning() -> Tuning:
    """The tuning of the current GPU."""
    return tuning_of(target_family())


def tuning_of(family: str) -> Tuning:
    """The tuning of a family of GPUs."""
    return FAMILIES.get(family, Tuning())


def assembler() -> str:
    """The instruction set for inline assembly, "cuda" or "hip"; "" in Triton's interpreter."""
    family = target_family()
    return "" if family == "interpreter" else "hip" if family.startswith("gfx") else "cuda"


def tensor_cores(dtype: torch.dtype) -> bool:
    """Return whether tiles use tensor cores; without them, tiles are slow and spill registers."""
    return dtype.itemsize == 2 and target_family() != "sm_75"


def gemv_block(weight: TritonWeight, x_rows: int, *, floats: bool) -> GemvBlock:
    """The program size for `x_rows` rows of x: a lane has one cell of each row at a time.

    The sizes are the fastest on an H200: many programs of one warp, with a single row of the weight
    where it is long.
    """
    warp = warp_size()
    if floats:
        cells = min(128, max(warp, triton.next_power_of_2(weight.cells)))
        return GemvBlock(x_rows, rows=2, cells=cells, warps=cells // warp)
    rows = 1 if x_rows <= 2 and weight.cells > LONG else 2
    return GemvBlock(x_rows, rows, cells=warp, warps=1)


def warp_size() -> int:
    return 64 if target_family() == "gfx942" else 32


TABLE_ROWS = 32
"""The most rows of x of a tile of weights with a table of floats, which takes many registers."""


def matmul_plan(weight: TritonWeight, x: Tensor, *, quantize: bool) -> Plan:
    """How x [t, k] is multiplied; `quantize` as in `gemm.matmul`."""
    rows = len(x)
    key = (*weight_key(weight), row_class(rows), str(x.dtype), quantize)
    plan = default_plan(weight, rows, x.dtype, quantize=quantize)
    candidates = partial(candidate_plans, weight, rows, x.dtype, quantize=quantize)
    return launch_parameters("quant_matmul", key, plan, candidates)


def default_plan(weight: TritonWeight, rows: int, dtype: torch.dtype, *, quantize: bool) -> Plan:
    config = tuning()
    vectors = config.float_rows if not quantize and tensor_cores(dtype) else config.gemv_rows
    if rows <= vectors:
        most = config.gemv_block_rows if quantize else config.float_rows
        return gemv_block(weight, block_rows(rows, most), floats=not quantize)
    if rows <= tile_limit(weight) and tensor_cores(dtype):
        return tile(weight, rows)
    return Dequantize()


def grouped_plan(weight: TritonWeight, x: Tensor, *, quantize: bool) -> GemvBlock | Tile:
    """As `matmul_plan`, for x [t, k] whose rows have experts."""
    rows = len(x)
    key = (*weight_key(weight), weight.matrices, row_class(rows), str(x.dtype), quantize)
    # Row by row if most experts have at most one row of x.
    few = rows <= max(tuning().gemv_rows, weight.matrices // 2)
    by_rows = few or not tensor_cores(x.dtype)
    plan: GemvBlock | Tile = (
        gemv_block(weight, 1, floats=not quantize)
        if by_rows
        else tile(weight, rows // weight.matrices)
    )

    def candidates() -> list[GemvBlock | Tile]:
        tiles = candidate_tiles(weight, rows // weight.matrices, x.dtype)
        return [*candidate_blocks(weight, 1, floats=not quantize), *tiles]

    return launch_parameters("grouped quant_matmul", key, plan, candidates)


def parts_block(weights: Sequence[TritonWeight], x: Tensor) -> GemvBlock | None:
    """The program of one product of x [t, k] with several weights, of equal k.

    None if x has too many rows for vectors, or if a weight multiplies x without quantizing it.
    """
    rows, config, first = len(x), tuning(), weights[0]
    if rows > config.gemv_rows or not all(weight.has_integer_values for weight in weights):
        return None
    key = (tuple(map(weight_key, weights)), row_class(rows), str(x.dtype))
    block = gemv_block(first, block_rows(rows, config.gemv_block_rows), floats=False)
    candidates = partial(candidate_blocks, first, rows, floats=False)
    return launch_parameters("quant_matmul parts", key, block, candidates)


def weight_key(weight: TritonWeight) -> tuple[object, ...]:
    return weight.layout, weight.n, weight.cells


VECTORS_ONLY = 4
"""The most rows of x of which the vector kernel is the only candidate."""
MOST_VECTORS = 16
"""The most rows of x of which it is a candidate."""


def candidate_plans(
    weight: TritonWeight, rows: int, dtype: torch.dtype, *, quantize: bool
) -> list[Plan]:
    """The plans that may be faster than the default: those near it in size."""
    plans: list[Plan] = []
    if rows <= MOST_VECTORS:
        plans += candidate_blocks(weight, rows, floats=not quantize)
    if rows > VECTORS_ONLY:
        plans += candidate_tiles(weight, rows, dtype)
    if rows > MOST_VECTORS:
        plans.append(Dequantize())
    return plans


def candidate_blocks(weight: TritonWeight, rows: int, *, floats: bool) -> list[GemvBlock]:
    """Programs of the vector kernels with as many rows of x as there are, or half as many."""
    warp = warp_size()
    largest = block_rows(rows, 4 if floats else 8)
    x_rows = [size for size in (1, 2, 4, 8) if largest // 2 <= size <= largest]
    sizes = [(1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (1, 4), (2, 4)]
    return [
        GemvBlock(many, n, cells=warps * warp, warps=warps)
        for many, (n, warps) in product(x_rows, sizes)
        if n * many <= 16 and (warps == 1 or (warps - 1) * warp < weight.cells)
    ]


def candidate_tiles(weight: TritonWeight, rows: int, dtype: torch.dtype) -> list[Tile]:
    """Tiles that hold all rows of x, or half of them; none for a dtype without tensor cores."""
    if not tensor_cores(dtype):
        return []
    largest = max(16, min(256, triton.next_power_of_2(rows)))
    if weight.tensors.table is not None:
        largest = min(largest, TABLE_ROWS)
    widths = [m for m in (16, 32, 64, 128, 256) if largest // 2 <= m <= largest]
    shapes = [(64, 4, 4), (64, 8, 4), (128, 4, 8), (128, 8, 8)]
    tiles = [
        Tile(m, n, cells, warps, stages, programs)
        for m, (n, cells, warps), stages, programs in product(widths, shapes, (2, 3), (132, 512))
        # A thread has at most 128 accumulators, fewer if a step unpacks eight cells.
        if m * n <= 4096 * warps and not (cells == 8 and (m > 64 or stages == 3))
    ]
    return list(dict.fromkeys(supported(weight, size) for size in tiles))


def block_rows(rows: int, limit: int) -> int:
    """Rows of x per program: the next power of two, at most `limit`."""
    return min(limit, 1 << max(rows - 1, 0).bit_length())


def tile_limit(weight: TritonWeight) -> int:
    """The most rows of x for tiles; beyond, weights are dequantized first."""
    return tuning().gemm_rows if weight.tensors.table is None else 2 * TABLE_ROWS


def tile(weight: TritonWeight, rows: int) -> Tile:
    """The smallest tile for `rows` rows of x, or of each expert; the largest for more rows."""
    tiles = [Tile(*sizes) for sizes in tuning().tiles]
    if weight.tensors.table is not None:
        tiles = [size for size in tiles if size.m <= TABLE_ROWS]
    size = next((size for size in tiles if size.m >= rows), tiles[-1])
    return supported(weight, size)


def supported(weight: TritonWeight, size: Tile) -> Tile:
    """The tile, or a smaller one where values of codes take twice the registers, in float32."""
    return size if weight.layout.bytes else size._replace(cells=4, stages=2)


def split_k(tiles: int, cells: int, tile: Tile) -> int:
    """Parts to split the sum of each tile into, so that the GPU is occupied: a power of two."""
    split = 1
    # A part must be at least as long as the pipeline that loads it.
    least = tile.cells * tile.stages
    while tiles * split * 2 <= tile.programs and cells >= split * 2 * least:
        split *= 2
    return split
