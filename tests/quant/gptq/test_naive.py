"""GPTQ in plain torch equals what gptqmodel reads: see tests/peers/formats/gptq.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from ostro.quant.gptq import naive

GOLDEN = load_file(Path(__file__).parent / "golden.safetensors")
CASES = sorted(name.removesuffix(".dequantized") for name in GOLDEN if "dequantized" in name)
WORD = 2**32 - 1


@pytest.mark.parametrize("case", CASES)
def test_it_reads_what_gptqmodel_reads(case: str) -> None:
    bits, format, _ = case.split(".")
    q, z, s, g = (GOLDEN[f"{case}.{name}"] for name in ("qweight", "qzeros", "scales", "g_idx"))
    ours = naive.dequantize(q, z, s, g, int(bits), zeros_minus_one=format == "gptq")
    assert ours.equal(GOLDEN[f"{case}.dequantized"])


def published(codes: Tensor, bits: int) -> Tensor:
    """Codes [64, n] packed along k as the first GPTQ repository does, by loops over words."""
    c = list(codes.long())
    words = [torch.zeros_like(c[0]) for _ in range(2 * bits)]
    if bits != 3:
        for i, code in enumerate(c):
            words[i // (32 // bits)] |= code << bits * (i % (32 // bits))
        return (torch.stack(words) & WORD).int()
    for i, w in ((0, 0), (32, 3)):
        for j in range(10):
            words[w] |= c[i + j] << 3 * j
            words[w + 1] |= c[i + 11 + j] << 3 * j + 1
            words[w + 2] |= c[i + 22 + j] << 3 * j + 2
        words[w] |= c[i + 10] << 30
        words[w + 1] |= c[i + 10] >> 2 & 1 | c[i + 21] << 31
        words[w + 2] |= c[i + 21] >> 1 & 3
    return (torch.stack(words) & WORD).int()


@pytest.mark.parametrize("bits", naive.BITS)
def test_codes_are_packed_as_published(bits: int) -> None:
    codes = torch.randint(0, 2**bits, (64, 5), dtype=torch.uint8)
    words = published(codes, bits)
    assert naive.unpack(words.t(), bits, 64).equal(codes.t())
    assert naive.pack(codes.t(), bits).equal(words.t())


@pytest.mark.parametrize("count", [1, 8, 11, 33, 64])
@pytest.mark.parametrize("bits", naive.BITS)
def test_codes_come_back(bits: int, count: int) -> None:
    codes = torch.randint(0, 2**bits, (3, count), dtype=torch.uint8)
    words = naive.pack(codes, bits)
    assert words.shape == (3, -(-count * bits // 32))
    assert naive.unpack(words, bits, count).equal(codes)


@pytest.mark.parametrize("bits", naive.BITS)
def test_zeros_of_version_1_wrap_around(bits: int) -> None:
    zeros = torch.randint(0, 2**bits, (4, 64), dtype=torch.uint8)
    zeros[0], zeros[1, ::2] = 0, 0
    words = naive.pack_zeros(zeros, bits, zeros_minus_one=True)
    assert naive.unpack_zeros(words, bits, 64, zeros_minus_one=True).equal(zeros)
    if bits == 3:
        assert naive.unpack(words, bits, 64).equal(zeros - 1 & 7)
        return
    one = sum(1 << i for i in range(0, 32, bits))
    taken = (naive.pack(zeros, bits).long() & WORD) - one
    assert (words.long() & WORD).equal(taken & WORD), "what convert_gptq_v2_to_v1_format does"
