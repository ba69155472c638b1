"""How products with planes are cut up, per kind of GPU.

A file `configs/<name of the GPU>.json` says what was measured to be best on it, in the fields of
`Cuts`; where there is none, or it leaves a field out, what stands here holds. It is read once, when
a model is settled.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton

from ostro.ops import target_family
from ostro.quant.planes.quant_matmul.weight import Weight

CONFIGS = Path(__file__).parent / "configs"


class Cuts(NamedTuple):
    """few: rows of x that lanes multiply; some: that tiles do, before weights are dequantized.

    together: rows of x of a program of lanes; widest: of a tile; columns, cells: of the weight, in
    a step; warps, stages: of a tile; programs: how many a GPU wants at least.
    """

    few: int = 8
    together: int = 8
    some: int = 512
    widest: int = 64
    columns: int = 64
    cells: int = 4
    warps: int = 4
    stages: int = 3
    programs: int = 256


FAMILIES = {
    "sm_75": Cuts(together=4),
    "sm_89": Cuts(widest=32),
    "gfx1100": Cuts(widest=16),
}
"""Where the usual cuts would spill registers."""


class Lanes(NamedTuple):
    """A program of few rows: rows of the weight, cells of each at a time, warps."""

    rows: int
    cells: int
    warps: int


class Tile(NamedTuple):
    """A program of many rows: rows of x, rows of the weight, cells at a time, warps, stages."""

    rows: int
    columns: int
    cells: int
    warps: int
    stages: int


def tuned(name: str) -> dict[str, Any]:
    """What was measured on the GPU of that name ("NVIDIA H200"); nothing where it was not."""
    path = CONFIGS / f"{name.lower().replace(' ', '_')}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return found


TUNED = tuned(torch.cuda.get_device_name()) if torch.cuda.is_available() else {}


def cuts() -> Cuts:
    return FAMILIES.get(target_family(), Cuts())._replace(**TUNED)


def assembler() -> str:
    """Whose instructions kernels may name; "" where they are interpreted."""
    if triton.knobs.runtime.interpret:
        return ""
    return str(triton.runtime.driver.active.get_current_target().backend)


def tensor_cores(dtype: torch.dtype) -> bool:
    """Whether tiles are worth it; without such cores they would spill registers as well."""
    return dtype.itemsize == 2 and target_family() != "sm_75"


def lanes(weight: Weight, many: int, *, floats: bool) -> Lanes:
    """Choose for `many` rows of x: every lane has one cell of each row at a time."""
    warp = 64 if target_family() == "gfx942" else 32
    cells = min(128, max(warp, triton.next_power_of_2(weight.cells)))
    return Lanes(rows=2 if floats or many > 4 else 4, cells=cells, warps=cells // warp)


def tile(rows: int) -> Tile:
    """Choose for so many rows of x, or of each expert."""
    cut = cuts()
    wide = max(16, min(cut.widest, triton.next_power_of_2(rows)))
    return Tile(wide, cut.columns, cut.cells, cut.warps, cut.stages)


def parts(tiles: int, cells: int) -> int:
    """In how many parts each tile is summed, so that there are programs enough: a power of two."""
    split, cut = 1, cuts()
    # a part is no shorter than the pipeline that loads it
    while tiles * split * 2 <= cut.programs and cells >= split * 2 * cut.cells * cut.stages:
        split *= 2
    return split
