"""causal_conv: against a convolution of whole sequences, and its kernels against each other."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from tiny.states import state_layout
from torch import Tensor

from ostro.core.ops.causal_conv import naive, native, triton
from ostro.core.ops.state_layout import StateLayout
from ostro.plugins.conformance.kernels import DEVICE, compile_for, poison, targets

BLOCKS = 9
BATCHES: dict[str, tuple[list[int], list[int], list[int | list[int]]]] = {
    "one": ([7], [-1], [3]),
    "goes on": ([5], [2], [2]),
    "decode": ([1, 1, 1, 1], [0, -1, 4, 3], [0, 1, 4, 2]),
    "mixed": ([1, 9, 2, 1, 40], [5, -1, 7, -1, 8], [5, 1, 6, 0, 8]),
    "shared": ([3, 1, 6], [4, 4, 4], [0, 1, 2]),
    "idle": ([0, 1, 4, 1, 1], [-1, 3, -1, -1, -1], [-1, 3, 0, -1, -1]),
    "nothing": ([0, 0], [-1, -1], [-1, -1]),
    "bucket": ([9, 1, 20, 0, 0], [-1, 3, -1, -1, -1], [1, 3, -1, -1, -1]),
    "drafts": ([3, 1, 5, 0], [5, -1, 4, -1], [[5, 1, 2], 3, [4, 6, -1, 0, 8], -1]),
    "bucket of drafts": ([4, 1, 1, 0, 19], [2, -1, -1, -1, 4], [[2, 1, 5, 8], 7, -1, -1, 4]),
}
"""Rows of each sequence, the blocks they go on from, and those that take their last states."""

MODULES = pytest.mark.parametrize("module", [triton, native], ids=["triton", "native"])


def places(name: str) -> StateLayout:
    return state_layout(*BATCHES[name], DEVICE)


def inputs(name: str, channels: int, width: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """x as a view of wider rows, weight, bias, states."""
    torch.manual_seed(0)
    rows = sum(BATCHES[name][0])
    x = torch.randn(rows, channels + 5, device=DEVICE).to(dtype)[:, 3 : 3 + channels]
    weight = torch.randn(channels, width, device=DEVICE)
    bias = torch.randn(channels, device=DEVICE)
    return x, weight, bias, torch.randn(BLOCKS, channels, width - 1, device=DEVICE)


@pytest.mark.parametrize("act", ["", "silu"])
@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_pieces_are_the_whole(width: int, act: str) -> None:
    """Sequences cut anywhere, their states kept in between, are what torch makes of the whole."""
    torch.manual_seed(0)
    whole = torch.randn(2, 23, 6)
    weight, bias = torch.randn(6, width), torch.randn(6)
    padded = F.pad(whole.mT, (width - 1, 0))
    expected = F.conv1d(padded, weight[:, None], bias, groups=6).mT
    expected = F.silu(expected) if act else expected
    state = torch.full((4, 6, width - 1), float("nan"))
    done, said = [0, 0], [torch.empty(0, 6), torch.empty(0, 6)]
    for step, counts in enumerate([(4, 1), (1, 0), (0, 9), (10, 2), (8, 11)]):
        rows = [whole[s, done[s] : done[s] + n] for s, n in enumerate(counts)]
        before = [s * 2 if done[s] else -1 for s in (0, 1)]
        after = [s * 2 if n else -1 for s, n in enumerate(counts)]
        where = state_layout(counts, before, after)
        y = naive.causal_conv(torch.cat(rows), weight, bias, state, where, act)
        for s, part in enumerate(y.split(counts)):
            said[s] = torch.cat((said[s], part))
            done[s] += counts[s]
        assert state[1::2].isnan().all(), f"{step = } wrote into a block that is nobody's"
    torch.testing.assert_close(torch.stack(said), expected)


@pytest.mark.sample(10)
@MODULES
@pytest.mark.parametrize("act", ["", "silu"])
@pytest.mark.parametrize(("channels", "width"), [(1, 2), (16, 3), (37, 4), (300, 3), (20, 1)])
@pytest.mark.parametrize("name", BATCHES)
def test_kernels(module: ModuleType, name: str, channels: int, width: int, act: str) -> None:
    x, weight, bias, state = inputs(name, channels, width, torch.float32)
    theirs = state.clone()
    with poison():
        y = module.causal_conv(x, weight, bias, state, places(name), act)
    expected = naive.causal_conv(x, weight, bias, theirs, places(name), act)
    torch.testing.assert_close(y, expected)
    assert torch.equal(state, theirs)


@MODULES
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_kernels_round_once(module: ModuleType, dtype: torch.dtype) -> None:
    if module is triton and dtype == torch.bfloat16 and DEVICE.type == "cpu":
        pytest.skip("numpy, which interprets, has no bfloat16")
    x, weight, _, state = inputs("mixed", 40, 3, dtype)
    theirs = state.clone()
    y = module.causal_conv(x, weight, None, state, places("mixed"))
    expected = naive.causal_conv(x, weight, None, theirs, places("mixed"))
    torch.testing.assert_close(y, expected)
    assert y.dtype == dtype and torch.equal(state, theirs)


def test_native_leaves_long_filters_to_the_naive_kernel() -> None:
    x, weight, bias, state = inputs("mixed", 5, 20, torch.float32)
    theirs = state.clone()
    y = native.causal_conv(x, weight, bias, state, places("mixed"))
    assert torch.equal(y, naive.causal_conv(x, weight, bias, theirs, places("mixed")))
    assert torch.equal(state, theirs)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def launch(
    rows: int, sequences: int, channels: int, width: int, dtype: torch.dtype
) -> list[object]:
    ints = [meta(n, dtype=torch.int64) for n in (sequences + 1, sequences, rows)]
    x = meta(rows, 3 * channels, dtype=dtype)[:, :channels]
    weights = [meta(channels, width), meta(channels)]
    return [x, *weights, meta(1000, channels, width - 1), StateLayout(*ints), "silu"]


LAUNCHES = {
    "decode": launch(64, 64, 2048, 3, torch.bfloat16),
    "prefill": launch(4096, 300, 10240, 4, torch.float16),
}


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize("name", LAUNCHES)
def test_compiles_without_spills(name: str, target: str) -> None:
    builds = compile_for(target, "ostro.core.ops.causal_conv.triton:causal_conv", *LAUNCHES[name])
    assert len(builds) == 2
    for build in builds:
        assert build.spills == 0, build.kernel
        assert build.registers <= 128, build.kernel
        assert build.shared <= 16384, build.kernel
