"""Qwen3-Next against transformers, and its delta rule's kernels against each other."""

from __future__ import annotations

from itertools import accumulate
from types import ModuleType

import pytest
import torch
from torch import Tensor

from ostro.architectures.qwen3_next.delta import kernels, naive, native
from ostro.core.ops.places import Places
from ostro.core.testing.architecture import ArchitectureTests
from ostro.core.testing.kernels import DEVICE, compile_for, poison, targets


class TestQwen3Next(ArchitectureTests):
    name = "qwen3_next"


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
    name: str, key_heads: int, heads: int, dk: int, dv: int, dtype: torch.dtype = torch.float32
) -> list[object]:
    """A delta rule's arguments; rows are views of wider rows."""
    torch.manual_seed(0)
    rows, before, after = BATCHES[name]
    widths = (key_heads * dk, key_heads * dk, heads * dv, heads, heads)
    wide = torch.randn(sum(rows), sum(widths) + 3, device=DEVICE).to(dtype)
    q, k, v, b, a = wide[:, 3:].split(widths, 1)
    q, k, v = q.unflatten(1, (-1, dk)), k.unflatten(1, (-1, dk)), v.unflatten(1, (-1, dv))
    rate, dt_bias = torch.randn(2, heads, device=DEVICE)
    dt_bias[0] = -12  # a time step so small that 1 + e^x forgets it
    lists = ([0, *accumulate(rows)], before, after)
    places = Places(*(torch.tensor(i, dtype=torch.int64, device=DEVICE) for i in lists))
    return [q, k, v, b, a, -rate.exp(), dt_bias, torch.randn(6, heads, dk, dv), places]


def both(twin: ModuleType, ours: list[object], theirs: list[object]) -> tuple[Tensor, Tensor]:
    with poison():
        y = twin.delta_rule(*ours)
    return y, naive.delta_rule(*theirs)


TWINS = pytest.mark.parametrize("twin", [kernels, native], ids=["triton", "native"])


@TWINS
@pytest.mark.parametrize("shape", [(2, 4, 24, 16), (1, 3, 7, 5), (2, 2, 128, 20)], ids=str)
@pytest.mark.parametrize("name", BATCHES)
def test_delta_rule(twin: ModuleType, name: str, shape: tuple[int, int, int, int]) -> None:
    ours, theirs = arguments(name, *shape), arguments(name, *shape)
    y, expected = both(twin, ours, theirs)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours[7], theirs[7], rtol=1e-4, atol=1e-5)


@TWINS
def test_delta_rule_of_halves_rounds_once(twin: ModuleType) -> None:
    ours, theirs = (arguments("mixed", 2, 4, 24, 16, torch.float16) for _ in range(2))
    y, expected = both(twin, ours, theirs)
    assert y.dtype == torch.float16
    torch.testing.assert_close(y, expected, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(ours[7], theirs[7], rtol=1e-4, atol=1e-5)


def test_native_leaves_wide_keys_to_the_naive_twin() -> None:
    ours, theirs = arguments("mixed", 1, 1, 600, 2), arguments("mixed", 1, 1, 600, 2)
    y, expected = both(native, ours, theirs)
    assert torch.equal(y, expected) and torch.equal(ours[7], theirs[7])  # type: ignore[arg-type]


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def launch(rows: int, sequences: int) -> list[object]:
    """The 80B: 16 key heads and 32 value heads of 128."""
    q, k, v = meta(rows, 8192).split((2048, 2048, 4096), 1)
    q, k, v = (each.unflatten(1, (-1, 128)) for each in (q, k, v))
    floats = [meta(32, dtype=torch.float32) for _ in range(2)]
    ints = [meta(i, dtype=torch.int64) for i in (sequences + 1, sequences, sequences)]
    state = meta(1000, 32, 128, 128, dtype=torch.float32)
    return [q, k, v, meta(rows, 32), meta(rows, 32), *floats, state, Places(*ints)]


LAUNCHES = {"decode": launch(64, 64), "prefill": launch(300, 5)}


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize("name", LAUNCHES)
def test_compiles_without_spills(name: str, target: str) -> None:
    call = "ostro.architectures.qwen3_next.delta.kernels:delta_rule"
    (build,) = compile_for(target, call, *LAUNCHES[name])
    assert build.spills == 0
    assert build.registers <= 128
    assert build.shared <= 16384
