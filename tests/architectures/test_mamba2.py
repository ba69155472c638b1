"""Mamba 2 against transformers, and its scan's kernels against each other."""

from __future__ import annotations

import math
from itertools import accumulate
from types import ModuleType

import pytest
import torch
from torch import Tensor

from ostro.architectures.mamba2.scan import kernels, naive, native
from ostro.core.ops.places import Places
from ostro.core.testing.architecture import ArchitectureTests
from ostro.core.testing.kernels import DEVICE, compile_for, poison, targets


class TestMamba2(ArchitectureTests):
    name = "mamba2"


BATCHES: dict[str, tuple[list[int], list[int], list[int]]] = {
    "one": ([7], [-1], [3]),
    "decode": ([1, 1, 1, 1], [0, -1, 4, 3], [0, 1, 4, 2]),
    "mixed": ([1, 5, 2, 11], [5, -1, 4, 0], [5, 1, 3, 0]),
    "shared": ([3, 1], [4, 4], [0, 1]),
    "idle": ([0, 1, 4, 1], [-1, 3, -1, -1], [-1, 3, 0, -1]),
    "nothing": ([0, 0], [-1, -1], [-1, -1]),
}
"""Rows of each sequence, the blocks they go on from, and those that take their states."""


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
    lists = ([0, *accumulate(rows)], before, after)
    places = Places(*(torch.tensor(i, dtype=torch.int64, device=DEVICE) for i in lists))
    state = torch.randn(6, heads, p, n, device=DEVICE)
    return [x, dt * 3, -a.exp(), b, c, d, dt_bias, (0.0, 2.5), state, places]


def both(twin: ModuleType, ours: list[object], theirs: list[object]) -> tuple[Tensor, Tensor]:
    with poison():
        y = twin.scan(*ours)
    return y, naive.scan(*theirs)


TWINS = pytest.mark.parametrize("twin", [kernels, native], ids=["triton", "native"])


@TWINS
@pytest.mark.parametrize("shape", [(4, 16, 2, 24), (3, 5, 3, 7), (2, 20, 1, 128)], ids=str)
@pytest.mark.parametrize("name", BATCHES)
def test_scan(twin: ModuleType, name: str, shape: tuple[int, int, int, int]) -> None:
    ours, theirs = arguments(name, *shape), arguments(name, *shape)
    y, expected = both(twin, ours, theirs)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(ours[8], theirs[8], rtol=1e-4, atol=1e-6)


@TWINS
@pytest.mark.parametrize("limit", [(0.0, math.inf), (0.3, 0.5)])
def test_scan_of_halves_rounds_once(twin: ModuleType, limit: tuple[float, float]) -> None:
    ours, theirs = (arguments("mixed", 4, 16, 2, 24, torch.float16) for _ in range(2))
    ours[7] = theirs[7] = limit
    y, expected = both(twin, ours, theirs)
    assert y.dtype == torch.float16
    torch.testing.assert_close(y, expected, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(ours[8], theirs[8], rtol=1e-4, atol=1e-5)


def test_native_leaves_wide_states_to_the_naive_twin() -> None:
    ours, theirs = arguments("mixed", 1, 2, 1, 600), arguments("mixed", 1, 2, 1, 600)
    y, expected = both(native, ours, theirs)
    assert torch.equal(y, expected) and torch.equal(ours[8], theirs[8])  # type: ignore[arg-type]


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def launch(rows: int, sequences: int, heads: int, groups: int, n: int) -> list[object]:
    widths = (heads * 64, groups * n, groups * n)
    x, b, c = meta(rows, sum(widths)).split(widths, 1)
    x, b, c = x.unflatten(1, (heads, 64)), b.unflatten(1, (groups, n)), c.unflatten(1, (groups, n))
    floats = [meta(heads, dtype=torch.float32) for _ in range(3)]
    ints = [meta(i, dtype=torch.int64) for i in (sequences + 1, sequences, sequences)]
    state = meta(1000, heads, 64, n, dtype=torch.float32)
    dt = meta(rows, 3 * heads)[:, :heads]
    limit = (0.0, math.inf)
    return [x, dt, floats[0], b, c, *floats[1:], limit, state, Places(*ints)]


LAUNCHES = {"2.7b": launch(64, 64, 80, 1, 128), "codestral": launch(300, 5, 128, 8, 128)}


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize("name", LAUNCHES)
def test_compiles_without_spills(name: str, target: str) -> None:
    call = "ostro.architectures.mamba2.scan.kernels:scan"
    (build,) = compile_for(target, call, *LAUNCHES[name])
    assert build.spills == 0
    assert build.registers <= 128
    assert build.shared <= 16384
