"""The scan of Mamba 2: its kernels against each other."""

from __future__ import annotations

import math
from types import ModuleType

import pytest
import torch
from tiny.states import state_layout
from torch import Tensor

from ostro.core.ops import Op, Target
from ostro.core.ops.chunked_scan import triton as chunks
from ostro.core.ops.scan import KERNELS, naive, native, triton
from ostro.core.ops.state_layout import StateLayout
from ostro.plugins.conformance.kernels import DEVICE, compile_for, poison, targets

BATCHES: dict[str, tuple[list[int], list[int], list[int | list[int]]]] = {
    "one": ([7], [-1], [3]),
    "decode": ([1, 1, 1, 1], [0, -1, 4, 3], [0, 1, 4, 2]),
    "mixed": ([1, 5, 2, 11], [5, -1, 4, 0], [5, 1, 3, 0]),
    "shared": ([3, 1], [4, 4], [0, 1]),
    "idle": ([0, 1, 4, 1], [-1, 3, -1, -1], [-1, 3, 0, -1]),
    "nothing": ([0, 0], [-1, -1], [-1, -1]),
    "bucket": ([37, 1, 19, 0, 0], [-1, 4, -1, -1, -1], [2, 4, -1, -1, -1]),
    "prompt": ([70], [-1], [2]),
    "prompts": ([1, 37, 0, 32, 5, 17], [5, -1, 2, 4, 0, -1], [5, 1, -1, 3, 0, -1]),
    "drafts": ([3, 1, 2, 4, 0], [5, -1, 4, 0, -1], [[5, 1, 2], 3, [4, 6], [7, -1, 8, 0], -1]),
    "bucket of drafts": ([4, 1, 1, 0, 19], [2, -1, -1, -1, 4], [[2, 1, 5, 8], 7, -1, -1, 4]),
}
"""Rows of each sequence, the blocks they go on from, and those that take their last states."""


def arguments(
    name: str, heads: int, p: int, groups: int, n: int, dtype: torch.dtype = torch.float32
) -> list[object]:
    """A scan's arguments; rows are views of wider rows."""
    torch.manual_seed(0)
    rows, before, after = BATCHES[name]
    widths = (heads * p, heads, groups * n, groups * n)
    wide = torch.randn(sum(rows), sum(widths) + 3, device=DEVICE).to(dtype)
    x, dt, b, c = wide[:, 3:].split(widths, 1)
    x, b, c = x.unflatten(1, (heads, p)), b.unflatten(1, (groups, n)), c.unflatten(1, (groups, n))
    a, d, dt_bias = torch.randn(3, heads, device=DEVICE)
    dt_bias[0] = -12  # a time step so small that 1 + e^x forgets it
    places = state_layout(rows, before, after, DEVICE)
    state = torch.randn(9, heads, p, n, device=DEVICE)
    return [x, dt * 3, -a.exp(), b, c, d, dt_bias, (0.0, 2.5), state, places]


def both(module: ModuleType, ours: list[object], theirs: list[object]) -> tuple[Tensor, Tensor]:
    with poison():
        y = module.scan(*ours)
    return y, naive.scan(*theirs)


MODULES = pytest.mark.parametrize("module", [triton, native], ids=["triton", "native"])


@pytest.mark.sample(6)
@MODULES
@pytest.mark.parametrize(
    "shape", [(4, 16, 2, 24), (3, 5, 3, 7), (2, 20, 1, 128), (1, 2, 1, 600)], ids=str
)
@pytest.mark.parametrize("name", BATCHES)
def test_scan(module: ModuleType, name: str, shape: tuple[int, int, int, int]) -> None:
    ours, theirs = arguments(name, *shape), arguments(name, *shape)
    y, expected = both(module, ours, theirs)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(ours[8], theirs[8], rtol=1e-4, atol=5e-6)


@pytest.mark.sample(1)
@MODULES
@pytest.mark.parametrize("limit", [(0.0, math.inf), (0.3, 0.5)])
def test_scan_of_halves_rounds_once(module: ModuleType, limit: tuple[float, float]) -> None:
    ours, theirs = (arguments("mixed", 4, 16, 2, 24, torch.float16) for _ in range(2))
    ours[7] = theirs[7] = limit
    y, expected = both(module, ours, theirs)
    assert y.dtype == torch.float16
    torch.testing.assert_close(y, expected, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(ours[8], theirs[8], rtol=1e-4, atol=1e-5)


@pytest.mark.sample(1)
@pytest.mark.parametrize("rows", [32, 64])
def test_chunks_of_any_length(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE.type == "cpu":
        tiles = (chunks.Tiles(rows, 32, 1, 1),) * 2
        monkeypatch.setitem(chunks.TILES, "interpreter", tiles)
    ours, theirs = arguments("prompts", 2, 40, 1, 24), arguments("prompts", 2, 40, 1, 24)
    y, expected = both(triton, ours, theirs)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(ours[8], theirs[8], rtol=1e-4, atol=5e-6)


@MODULES
def test_some_rows_forget_all_and_others_nothing(module: ModuleType) -> None:
    """Steps from e^-15 to 60, whose logs of decay add up to thousands within a chunk."""
    ours, theirs = (arguments("prompt", 4, 16, 2, 24) for _ in range(2))
    step = torch.where(torch.rand(70, 4, device=DEVICE) < 0.3, 60.0, -15.0)
    for given in (ours, theirs):
        given[1], given[6], given[7] = step, torch.zeros(4, device=DEVICE), (0.0, math.inf)
    y, expected = both(module, ours, theirs)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours[8], theirs[8], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_rows_of_bfloat16() -> None:
    ours, theirs = (arguments("prompts", 4, 16, 2, 24, torch.bfloat16) for _ in range(2))
    y, expected = both(triton, ours, theirs)
    torch.testing.assert_close(y, expected, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(ours[8], theirs[8], rtol=2e-3, atol=2e-3)


@pytest.mark.slow
def test_long_sequences_alone_go_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = BATCHES["prompts"][0]
    monkeypatch.setattr(triton, "advance_chunks", lambda *given: None)
    with poison():
        y = triton.scan(*arguments("prompts", 4, 16, 2, 24, torch.float16))
        fixed = triton.scan_deterministic(*arguments("prompts", 4, 16, 2, 24, torch.float16))
    for part, count in zip(y.split(rows), rows, strict=True):
        assert count == 0 or bool(part.isnan().all()) == (count > chunks.SHORT_SEQUENCE)
    assert not fixed.isnan().any()


def test_reproducible_rows_go_one_by_one() -> None:
    for deterministic, name in ((False, "triton"), (True, "triton_deterministic")):
        target = Target(
            device=torch.device("cuda"), dtype=torch.bfloat16, deterministic=deterministic
        )
        assert Op(KERNELS).select(target).kernel.name == name


def test_native_bits_do_not_depend_on_the_cut() -> None:
    whole, single = (arguments("prompt", 2, 20, 1, 40) for _ in range(2))
    expected, rows = native.scan(*whole), []
    for t in range(70):
        at = [x[t : t + 1] if i in (0, 1, 3, 4) else x for i, x in enumerate(single[:9])]  # type: ignore[index]
        rows.append(native.scan(*at, places(1, 2 if t else -1, 2)))
    assert torch.equal(torch.cat(rows), expected)
    assert torch.equal(single[8], whole[8])  # type: ignore[arg-type]


def places(rows: int, before: int, after: int) -> StateLayout:
    return state_layout([rows], [before], [after])


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def launch(
    rows: int, sequences: int, heads: int, groups: int, n: int, dtype: torch.dtype = torch.bfloat16
) -> list[object]:
    widths = (heads * 64, groups * n, groups * n)
    x, b, c = meta(rows, sum(widths), dtype=dtype).split(widths, 1)
    x, b, c = x.unflatten(1, (heads, 64)), b.unflatten(1, (groups, n)), c.unflatten(1, (groups, n))
    floats = [meta(heads, dtype=torch.float32) for _ in range(3)]
    ints = [meta(i, dtype=torch.int64) for i in (sequences + 1, sequences, rows)]
    state = meta(1000, heads, 64, n, dtype=torch.float32)
    dt = meta(rows, 3 * heads, dtype=dtype)[:, :heads]
    limit = (0.0, math.inf)
    return [x, dt, floats[0], b, c, *floats[1:], limit, state, StateLayout(*ints)]


LAUNCHES = {
    "decode": launch(64, 64, 80, 1, 128),
    "prefill": launch(300, 5, 128, 8, 128),
}


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize("name", LAUNCHES)
def test_compiles_without_spills(name: str, target: str) -> None:
    call = "ostro.core.ops.scan.triton:scan"
    steps, *rest = compile_for(target, call, *LAUNCHES[name])
    assert steps.spills == 0
    assert steps.registers <= 128
    assert steps.shared <= 16384
    in_chunks = name != "decode" and target not in ("sm_75", "gfx1100")
    assert len(rest) == 2 * in_chunks
    for build in rest:
        assert build.spills == 0, f"{build.kernel}: {build.registers} registers"
        most = 64 if target == "gfx942" else 99 if target in ("sm_89", "sm_120") else 163
        assert build.shared <= most << 10, f"{build.kernel}: {build.shared >> 10} KiB"


@pytest.mark.parametrize(("n", "dtype"), [(128, torch.float32), (256, torch.bfloat16)])
def test_states_too_large_for_chunks_compile_row_by_row(n: int, dtype: torch.dtype) -> None:
    given = launch(300, 5, 128, 8, n, dtype)
    (steps,) = compile_for("sm_80", "ostro.core.ops.scan.triton:scan", *given)
    assert steps.spills == 0


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_a_chunk_takes_fewer_instructions(target: str) -> None:
    """Per row and element of a state; what goes row by row takes at least six."""
    call = "ostro.core.ops.scan.triton:scan"
    steps, _, advance = compile_for(target, call, *LAUNCHES["prefill"])
    tiles, _ = chunks.TILES[target]
    each = advance.instructions_per(tiles.rows * tiles.values * 128)
    assert each <= 1.25
    assert each <= steps.instructions_per(triton.ELEMENTS) / 4
