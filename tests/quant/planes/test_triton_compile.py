"""Machine code of the Triton quantized matrix products: no spills, few instructions per weight.

`instructions.json` lists the instructions per weight by triton version. Run this file to measure
them again with the installed triton.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import triton

from ostro.plugins.conformance.kernels import Build, compile_for, targets
from ostro.quant.planes.planes import WIDTHS, Planes
from ostro.quant.planes.quant_matmul import tiles

TABLE = Path(__file__).with_name("instructions.json")
N = K = 4096
HALF, BYTE, FLOAT = torch.float16, torch.uint8, torch.float32

KINDS: dict[str, dict[str, Any]] = {
    "4 bits, super scales": dict(bits=4, group=32, scale=BYTE, offset=BYTE, d=8),
    "4 bits by 128": dict(bits=4, group=128, scale=HALF, zero=8),
    "4 bits, zeros": dict(bits=4, group=64, scale=HALF, zero=HALF),
    "4 bits, integer table": dict(bits=4, group=32, scale=torch.int8, d=8, table=True),
    "8 bits": dict(bits=8, group=32, scale=HALF, zero=128),
    "6 bits": dict(bits=6, group=16, scale=torch.int8, zero=32, d=16),
    "5 bits": dict(bits=5, group=32, scale=BYTE, offset=BYTE, d=8),
    "3 bits": dict(bits=3, group=16, scale=torch.int8, zero=4, d=16),
    "4 bits, float table": dict(bits=4, group=64, scale=FLOAT, table="thirds"),
    "e4m3": dict(bits=8, group=K, scale=FLOAT, table=torch.float8_e4m3fn),
    "e5m2": dict(bits=8, group=K, scale=FLOAT, table=torch.float8_e5m2),
}

BUDGETS = {
    "4 bits, super scales": 2.5,
    "4 bits by 128": 2.5,
    "4 bits, zeros": 2.5,
    # eight codes take thirteen instructions to look up
    "4 bits, integer table": 3,
    "8 bits": 4,
    "6 bits": 3.5,
}
"""Instructions that a weight may cost one row of x: what a GPU issues while it loads the weight."""

TILE_BUDGETS = {
    "4 bits, super scales": 5.5,
    "4 bits by 128": 5,
    "4 bits, zeros": 5.5,
    "8 bits": 4.6,
    "6 bits": 6,
    "5 bits": 6,
    "3 bits": 6,
}
"""Instructions that a weight may cost a tile."""

LAUNCHES = {
    "one row": ("matmul", 1),
    "four rows": ("matmul", 4),
    "eight rows": ("matmul", 8),
    "exact, one row": ("matmul_exact", 1),
    "exact, four rows": ("matmul_exact", 4),
    "tiles of 16": ("matmul_exact", 16),
    "tiles of 64": ("matmul_exact", 64),
    "tiles of 128": ("matmul_exact", 128),
    "tiles of 256": ("matmul_exact", 512),
    "experts, few rows": ("grouped_matmul", 8),
    "experts, tiles of 16": ("grouped_matmul", 100),
    "experts, tiles of 64": ("grouped_matmul", 4096),
    "floats": ("dequantize", 0),
}

SPILLING = ("4 bits, super scales", "6 bits", "5 bits", "4 bits, float table", "e4m3")
"""Kinds that hold the most in registers."""


def outline(
    bits: int,
    group: int,
    *,
    scale: torch.dtype,
    zero: Any = 0,
    offset: torch.dtype | None = None,
    d: int = 0,
    table: bool | str | torch.dtype = False,
    experts: int = 0,
) -> Planes:
    """Planes on the meta device, [N, K] or [experts, N, K]."""
    rows = (experts, N) if experts else (N,)

    def empty(size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(*rows, size, dtype=dtype, device="meta")

    groups = K // group
    values = torch.arange(2**bits, dtype=BYTE)
    values = values.view(table).float() if isinstance(table, torch.dtype) else values.float()
    values = values / 3 if table == "thirds" else values  # as int8, they have no common unit
    return Planes(
        codes=tuple(empty(K * b // 8, BYTE).unflatten(-1, (-1, 4 * b)) for b in WIDTHS[bits]),
        scale=empty(groups, scale),
        zero=empty(groups, zero) if isinstance(zero, torch.dtype) else zero,
        offset=None if offset is None else empty(groups, offset),
        d=empty(groups // d, HALF) if d else None,
        m=empty(groups // d, HALF) if d and offset is not None else None,
        table=values if table else None,
    )


def launched(target: str, kind: str, verb: str, rows: int) -> list[Build]:
    dtype = HALF if target == "sm_75" else torch.bfloat16
    made = outline(**KINDS[kind], experts=32 if verb == "grouped_matmul" else 0)
    x = torch.empty(rows, K, dtype=dtype, device="meta")
    arguments: tuple[Any, ...] = (x, made)
    if verb == "dequantize":
        arguments = (made, dtype)
    elif verb == "grouped_matmul":
        arguments = (x, made, torch.empty(rows, dtype=torch.int64, device="meta"))
    return compile_for(target, f"ostro.quant.planes.quant_matmul.triton:{verb}", *arguments)


def cost(target: str, kind: str, rows: int) -> float:
    """Instructions per weight of the lanes' loop: a lane has a cell of each row of the weight."""
    build = launched(target, kind, "matmul", rows)[-1]
    assert build.kernel == "integers_kernel"
    return round(build.instructions_per(2 * build.threads * 32), 2)


def recorded() -> dict[str, Any]:
    """The table of the installed triton: instructions by target, kind and rows; may be empty."""
    found: dict[str, Any] = json.loads(TABLE.read_text()).get(triton.__version__, {})
    return found


def slow_but(quick: bool) -> Any:
    return () if quick else pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "kind"),
    [
        pytest.param(target, kind, marks=slow_but(target == "sm_90" and "zeros" not in kind))
        for target in ("sm_80", "sm_90")
        for kind in BUDGETS
    ],
)
def test_a_weight_costs_few_instructions(target: str, kind: str) -> None:
    measured = cost(target, kind, 1)
    assert measured <= BUDGETS[kind]
    if table := recorded():
        assert measured <= table[target][kind]["1"] * 1.05


@pytest.mark.slow
@pytest.mark.parametrize(("target", "rows"), [("sm_80", 4), ("sm_80", 8), ("sm_90", 4)])
@pytest.mark.parametrize("kind", BUDGETS)
def test_the_table_of_costs_holds(target: str, kind: str, rows: int) -> None:
    if not (table := recorded()):
        pytest.skip(f"{TABLE.name} has no table for triton {triton.__version__}")
    assert cost(target, kind, rows) <= table[target][kind][str(rows)] * 1.05


@pytest.mark.slow
@pytest.mark.parametrize("kind", TILE_BUDGETS)
@pytest.mark.parametrize("rows", [16, 32, 64, 128])
def test_a_weight_of_a_tile_costs_few_instructions(kind: str, rows: int) -> None:
    """Tensor cores take weights from the registers in which lanes unpack them."""
    (build,) = tiles_of(kind, rows)
    size = tiles.tuning_of("sm_90").tiles[(16, 32, 64, 128).index(rows)]
    assert build.instructions_per(size[1] * size[2] * 32) <= TILE_BUDGETS[kind]
    products = [line for line in build.loop if line.startswith("HGMMA")]
    # accumulators, the left operand, the right one: a descriptor names what lies in shared memory
    assert products and all(line.split(", ")[1].startswith("R") for line in products)
    assert not [line for line in build.loop if line.startswith(("STS", "LDSM"))]
    assert build.spills == 0


def tiles_of(kind: str, rows: int) -> list[Build]:
    builds = launched("sm_90", kind, "matmul_exact", rows)
    return [build for build in builds if build.kernel == "matmul_kernel"]


@pytest.mark.slow
@pytest.mark.parametrize("target", [target.values[0] for target in targets()])
@pytest.mark.parametrize("launch", LAUNCHES)
@pytest.mark.parametrize("kind", SPILLING)
def test_compiles_without_spills(kind: str, launch: str, target: str) -> None:
    if target == "sm_75" and "tiles" in launch and "experts" not in launch:
        pytest.skip("dense: sm_75 has no tensor cores in triton, and torch multiplies no meta")
    builds = launched(target, kind, *LAUNCHES[launch])
    assert builds
    for build in builds:
        # A pointer of the loop over experts may spill, but nothing of the loop over cells.
        # Values of a table of floats are computed in more registers than gfx1100 has.
        most = 8 * ("experts" in launch)
        most = 16 if (kind, target) == ("4 bits, float table", "gfx1100") else most
        assert build.spills <= most, build.kernel
        # Two programs fit a multiprocessor; one of eight warps has that of sm_90 to itself.
        limit = {"sm_90": 227 if build.threads == 256 else 113}.get(target, 82)
        assert build.shared <= limit << 10, build.kernel


@pytest.mark.parametrize("target", targets())
def test_parts_compile_as_separate_weights(target: str) -> None:
    """A program of parts takes as many registers and instructions as one of its costliest part."""
    kinds = "4 bits, super scales", "6 bits"
    x = torch.empty(1, K, dtype=HALF if target == "sm_75" else torch.bfloat16, device="meta")
    call = "ostro.quant.planes.quant_matmul.triton:matmul_parts"
    *_, build = compile_for(target, call, x, [outline(**KINDS[kind]) for kind in kinds])
    alone = [launched(target, kind, "matmul", 1)[-1] for kind in kinds]
    assert build.kernel == "parts_kernel" and build.spills == 0
    assert build.registers <= max(each.registers for each in alone) + 8
    assert len(build.loop) <= max(len(each.loop) for each in alone) * 1.05


@pytest.mark.parametrize("target", ["gfx942", pytest.param("gfx1100", marks=pytest.mark.slow)])
def test_amd_multiplies_four_codes_at_once(target: str) -> None:
    build = launched(target, "4 bits, integer table", "matmul", 1)[-1]
    assert "v_dot4" in build.assembly and "v_perm_b32" in build.assembly
    assert build.spills == 0


def record() -> None:
    """Write the table of the installed triton."""
    tables = json.loads(TABLE.read_text())
    tables[triton.__version__] = {
        target: {kind: {str(rows): cost(target, kind, rows) for rows in counts} for kind in BUDGETS}
        for target, counts in {"sm_80": (1, 4, 8), "sm_90": (1, 4)}.items()
    }
    TABLE.write_text(json.dumps(tables, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    record()
