"""Planes: packing round trips, the formula, selecting and joining, and `Packed`."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ostro.plugins.conformance.formats import target_of
from ostro.quant.planes.planes import CELL, WIDTHS, Planes, pack_codes, unpack_codes
from ostro.quant.planes.quant_matmul import naive
from ostro.quant.planes.storage import Packed

N, K = 12, 128


def planes(
    bits: int = 4, group: int = 32, *, lead: tuple[int, ...] = (N,), seed: int = 0
) -> tuple[Planes, Tensor]:
    """Random planes with every tensor set, and their weights by the formula."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 2**bits, (*lead, K), generator=generator, dtype=torch.uint8)
    groups = (*lead, K // group)
    scale = torch.randint(1, 64, groups, generator=generator, dtype=torch.uint8)
    offset = torch.randint(-9, 9, groups, generator=generator, dtype=torch.int8)
    zero = torch.rand(groups, generator=generator)
    d = torch.rand(*lead, 2, generator=generator).half()
    m = torch.rand(*lead, 2, generator=generator).half()
    table = torch.randn(2**bits, generator=generator)
    made = Planes(
        codes=pack_codes(codes, bits), scale=scale, zero=zero, offset=offset, table=table, d=d, m=m
    )
    wide = [t.float().repeat_interleave(K // t.shape[-1], -1) for t in (scale, offset, zero, d, m)]
    s, o, z, dd, mm = wide
    return made, (table[codes.int()] - z) * (s * dd) + o * mm


@pytest.mark.parametrize("bits", WIDTHS)
def test_codes_round_trip(bits: int) -> None:
    codes = torch.randint(0, 2**bits, (3, 5, 96), dtype=torch.uint8)
    packed = pack_codes(codes, bits)
    assert [plane.shape[-1] for plane in packed] == [4 * width for width in WIDTHS[bits]]
    assert sum(plane.nbytes for plane in packed) * 8 == codes.numel() * bits
    assert unpack_codes(packed).equal(codes)


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_words_hold_adjacent_codes(width: int) -> None:
    codes = torch.randint(0, 2**width, (CELL,), dtype=torch.uint8)
    (plane,) = pack_codes(codes, width)
    words = plane[0].contiguous().view(torch.int32)
    for w in range(width):
        for s in range(8 // width):
            four = ((words[w] >> (width * s)).reshape(1).view(torch.uint8)) & (2**width - 1)
            first = 4 * (w + width * s)
            assert four.equal(codes[first : first + 4])


def test_rejects_rows_of_partial_cells() -> None:
    with pytest.raises(ValueError, match="rows of 40 codes"):
        pack_codes(torch.zeros(2, 40, dtype=torch.uint8), 4)


@pytest.mark.parametrize("group", [16, 32, 64])
@pytest.mark.parametrize("bits", WIDTHS)
def test_dequantizes_by_the_formula(bits: int, group: int) -> None:
    made, truth = planes(bits, group)
    assert (made.bits, made.group, made.shape) == (bits, group, (N, K))
    assert naive.dequantize(made, torch.float32).equal(truth)


def test_absent_tensors_are_skipped() -> None:
    made, _ = planes()
    plain = replace(made, zero=8, offset=None, table=None, d=None, m=None)
    assert plain.nbytes == N * K // 2 + N * K // 32
    codes = unpack_codes(plain.codes).float().unflatten(-1, (-1, 32))
    truth = ((codes - 8) * plain.scale.float()[..., None]).flatten(-2)
    assert naive.dequantize(plain, torch.float32).equal(truth)


def test_select_and_join() -> None:
    made, truth = planes(6, 16)
    assert naive.dequantize(made.select(slice(3, 7)), torch.float32).equal(truth[3:7])
    ids = torch.tensor([4, 4, 0])
    assert naive.dequantize(made.select(ids), torch.float32).equal(truth[ids])
    more, other = planes(6, 16, seed=1)
    more = replace(more, table=made.table)
    other = naive.dequantize(more, torch.float32)
    both = Planes.join([made, more])
    assert naive.dequantize(both, torch.float32).equal(torch.cat([truth, other]))
    stack = Planes.join([made, more], stack=True)
    assert stack.shape == (2, N, K)
    assert naive.dequantize(stack.rows(), torch.float32).equal(torch.cat([truth, other]))


class Plain(Packed):
    def save(self) -> dict[str, Tensor]:
        raise NotImplementedError


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
def test_packed_implements_every_storage_method(ordered: bool, deterministic: bool) -> None:
    made, truth = planes(4, 32)
    order = torch.randperm(K) if ordered else None
    if order is not None:
        moved = torch.empty_like(truth)
        moved[:, order] = truth
        truth = moved
    storage = Plain("Plain", made, torch.float32, order=order)
    for finalized in (False, True):
        if finalized:
            storage.finalize(target_of(storage, deterministic=deterministic, exact=True))
        assert storage.dequantize().equal(truth) and storage.dequantize(2, 5).equal(truth[2:5])
        x = torch.randn(3, 2, K)
        torch.testing.assert_close(storage.matmul(x), x @ truth.t(), rtol=1e-5, atol=2e-3)
        ids = torch.tensor([3, 0, 3])
        assert storage.rows(ids).equal(truth[ids])
        permuted = storage.permute_rows(lambda tensor: tensor.flip(0))
        assert permuted.dequantize().equal(truth.flip(0))
    both = Plain.fuse([storage, storage])
    assert both is not None and both.dequantize().equal(torch.cat([truth, truth]))
    other = Plain("Plain", replace(made, zero=1), torch.float32, order=order)
    assert Plain.fuse([storage, other]) is None
    stacked = Plain.stack([storage, storage])
    assert stacked is not None and stacked.shape == (2, N, K)
    stacked.finalize(target_of(stacked, deterministic=deterministic, exact=True))
    x, experts = torch.randn(5, K), torch.tensor([0, 0, 1, 1, 1])
    torch.testing.assert_close(stacked.grouped(x, experts), x @ truth.t(), rtol=1e-5, atol=2e-3)


def test_quantized_activations_are_within_half_a_step() -> None:
    x = torch.randn(4, K)
    x[0] = 0
    q, d = naive.quantize_activations(x)
    assert q.dtype == torch.int8 and d.shape == (4, K // CELL)
    back = (q.float().unflatten(-1, (-1, CELL)) * d[..., None]).flatten(-2)
    step = d.repeat_interleave(CELL, -1)
    assert ((back - x).abs() <= 0.5001 * step).all() and back[0].eq(0).all()
