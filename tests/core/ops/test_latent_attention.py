"""Latent attention: Triton against the naive attention, when it is taken, and its machine code."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from tiny.candidates import results_of_candidates
from torch import Tensor

from ostro.core.errors import Unsupported
from ostro.core.ops import Op, Target
from ostro.core.ops.attention import AttentionMetadata, naive
from ostro.core.ops.latent_attention import KERNELS, triton
from ostro.plugins.conformance.kernels import DEVICE, compile_for, poison, targets

NAN = float("nan")
PAGE = 16


def arguments(
    queries: Sequence[int],
    lengths: Sequence[int],
    heads: int = 4,
    rank: int = 64,
    rope: int = 16,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor, AttentionMetadata, float]:
    """Sequences of `lengths` whose last `queries` tokens are rows; what is no latent is NaN."""
    torch.manual_seed(0)
    width = max(-(-length // PAGE) for length in lengths) + 1
    table = (torch.randperm(len(lengths) * width) + 1).view(-1, width)
    cache = torch.full((table.numel() + 1, 1, PAGE, rank + rope), NAN)
    for s, length in enumerate(lengths):
        position = torch.arange(length)
        latents = torch.randn(length, rank + rope)
        cache[table[s, position // PAGE], 0, position % PAGE] = latents
    batch = AttentionMetadata(
        table=table.int().to(DEVICE),
        starts=torch.tensor([0, *queries]).cumsum(0).int().to(DEVICE),
        lengths=torch.tensor(lengths).int().to(DEVICE),
        slots=torch.full((sum(queries),), -1, dtype=torch.int64, device=DEVICE),
        max_queries=max(queries),
        max_length=max(lengths),
    )
    q = torch.randn(sum(queries), heads + 1, rank + rope).to(dtype).to(DEVICE)[:, :heads]
    cache = cache.to(dtype).to(DEVICE)
    return q, cache, cache[..., :rank], batch, (rank + rope) ** -0.5


BATCHES = {
    "decode": ([1, 1, 1, 1], [1, 70, 0, 33]),
    "one": ([1], [150]),
    "chunk": ([9], [40]),
    "mixed": ([3, 1, 5, 1, 20], [3, 90, 12, 0, 33]),
    "bucket": ([3, 1, 40, 0, 0], [3, 20, 0, 0, 0]),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "shape",
    [
        (4, 64, 16),
        (1, 64, 4),
        pytest.param((16, 64, 8), marks=pytest.mark.slow),
        pytest.param((20, 128, 64), marks=pytest.mark.slow),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", BATCHES)
def test_triton_matches_naive(name: str, shape: tuple[int, int, int]) -> None:
    given = arguments(*BATCHES[name], *shape)
    with poison():
        ours = triton.latent_attention(*given)
    torch.testing.assert_close(ours, naive.attention(*given), rtol=1e-4, atol=1e-5)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", BATCHES)
def test_float16_matches_naive(name: str) -> None:
    given = arguments(*BATCHES[name], dtype=torch.float16)
    with poison():
        ours = triton.latent_attention(*given)
    assert ours.dtype == torch.float16
    torch.testing.assert_close(ours, naive.attention(*given), rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("name", ["decode", "mixed"])
def test_all_candidates_compute_the_same(name: str) -> None:
    given = arguments(*BATCHES[name], dtype=torch.float16)
    truth = naive.attention(*given)
    results = list(results_of_candidates(lambda: triton.latent_attention(*given)))
    assert len(results) == {"decode": 3, "mixed": 6}[name]
    for result in results:
        torch.testing.assert_close(result, truth, rtol=4e-3, atol=4e-3)


@pytest.mark.slow
def test_splits_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    given = arguments(*BATCHES["mixed"])
    split = triton.latent_attention(*given)
    monkeypatch.setattr(triton, "PROGRAMS", 1)
    torch.testing.assert_close(triton.latent_attention(*given), split, rtol=1e-5, atol=1e-6)


def test_a_cache_of_another_type_is_left_to_attention() -> None:
    q, cache, _, batch, scale = arguments(*BATCHES["decode"])
    cache = cache.half()
    given = (q, cache, cache[..., :64], batch, scale)
    with poison():
        ours = triton.latent_attention(*given)
    torch.testing.assert_close(ours, naive.attention(*given), rtol=1e-4, atol=1e-5)


def test_rows_that_see_all_are_left_to_attention() -> None:
    given = arguments(*BATCHES["chunk"])
    given[3].full = torch.ones(1, dtype=torch.int32, device=DEVICE)
    ours = triton.latent_attention(*given)
    torch.testing.assert_close(ours, naive.attention(*given), rtol=1e-4, atol=1e-5)
    given[3].full = None
    assert not torch.allclose(ours, triton.latent_attention(*given), rtol=1e-2)


@pytest.mark.parametrize(
    ("dtype", "rank", "deterministic", "chosen"),
    [
        (torch.bfloat16, 512, False, "triton_latent"),
        (torch.bfloat16, 512, True, "triton_deterministic"),
        (torch.float32, 512, False, "triton"),
        (torch.bfloat16, 40, False, "triton"),
    ],
)
def test_chosen_for(dtype: torch.dtype, rank: int, deterministic: bool, chosen: str) -> None:
    op = Op(KERNELS, head_dim=rank + 64, rank=rank)
    target = Target(device=torch.device("cuda"), dtype=dtype, deterministic=deterministic)
    assert op.select(target).kernel.name == chosen
    assert op.name == "latent_attention"


def meta(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


MOST = {"sm_89": 99, "sm_120": 99, "sm_80": 163, "sm_90": 227, "sm_100": 227, "gfx942": 64}
"""KiB of shared memory that a program may have, where there are tiles."""


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize(
    ("queries", "heads"), [(1, 16), (1, 128), (4, 16)], ids=["lite", "v3", "chunk"]
)
def test_compiles_without_spills(queries: int, heads: int, target: str) -> None:
    """16 sequences of up to 8192 tokens."""
    if target not in MOST:
        pytest.skip("attention is taken instead: no tile fits sm_75's memory, gfx1100 spills")
    pages = meta(1000, 1, PAGE, 576, dtype=torch.bfloat16)
    slots = meta(16 * queries, dtype=torch.int64)
    batch = AttentionMetadata(meta(16, 512), meta(17), meta(16), slots, queries, 8192)
    q = meta(16 * queries, heads, 576, dtype=torch.bfloat16)
    call = f"{triton.__name__}:latent_attention"
    for build in compile_for(target, call, q, pages, pages[..., :512], batch, 0.1):
        table = f"{build.kernel}: {build.registers} registers, {build.shared >> 10} KiB"
        assert build.spills == 0, table
        assert build.shared <= MOST[target] << 10, table
    assert not {"U8", "S8", "U16", "S16"} & build.loads.keys(), "latents are loaded element-wise"


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize(("heads", "most"), [(16, 224), (128, 144)])
def test_a_latent_is_read_once(heads: int, most: int, target: str) -> None:
    """The loop copies no more from global memory than its latents, 16 bytes at a time, and numbers
    of pages. `most`: instructions per pair of row and key, for two products of 576 and 512."""
    pages = meta(1000, 1, PAGE, 576, dtype=torch.bfloat16)
    batch = AttentionMetadata(
        meta(16, 512), meta(17), meta(16), meta(16, dtype=torch.int64), 1, 8192
    )
    q = meta(16, heads, 576, dtype=torch.bfloat16)
    call = f"{triton.__name__}:latent_attention"
    build, *_ = compile_for(target, call, q, pages, pages[..., :512], batch, 0.1)
    tiles = triton.TILES[target][heads > 16]
    latents = tiles.keys * 576 * 2 // 16 // build.threads
    assert latents <= build.opcodes["LDGSTS"] <= latents + 4
    assert build.instructions_per(tiles.rows * tiles.keys) <= most


def test_strided_elements_are_refused() -> None:
    q, cache, values, batch, scale = arguments(*BATCHES["decode"])
    with pytest.raises(Unsupported, match="last dimension"):
        triton.latent_attention(
            q.transpose(1, 2).contiguous().transpose(1, 2), cache, values, batch, scale
        )
