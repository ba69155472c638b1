"""MLX's affine formats in plain torch equal MLX's own numbers: see tests/peers/formats/afq.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from ostro.quant.afq import naive

GOLDEN = load_file(Path(__file__).parent / "golden.safetensors")
CASES = sorted({name.rpartition(".")[0] for name in GOLDEN if "." in name})


def golden(case: str) -> tuple[int, int, tuple[Tensor, Tensor, Tensor], Tensor]:
    """Bits, group, what MLX packed, and what it makes of that again."""
    bits, group, _ = case.split(".")
    packed = (GOLDEN[f"{case}.weight"], GOLDEN[f"{case}.scales"], GOLDEN[f"{case}.biases"])
    return int(bits), int(group), packed, GOLDEN[f"{case}.dequantized"]


@pytest.mark.parametrize("case", CASES)
def test_codes_are_unpacked_as_mlx_does(case: str) -> None:
    bits, _, (words, scales, biases), theirs = golden(case)
    ours = naive.dequantize(words, scales, biases, bits)
    if theirs.dtype == torch.float32:
        assert ours.equal(theirs)
        return
    codes = naive.unpack(words, bits).to(theirs.dtype).unflatten(-1, (scales.shape[-1], -1))
    rounded = codes * scales[..., None] + biases[..., None]
    assert rounded.flatten(-2).equal(theirs), "MLX rounds the product, then the sum"


@pytest.mark.parametrize("case", CASES)
def test_weights_are_quantized_as_mlx_does(case: str) -> None:
    bits, group, (words, *theirs), _ = golden(case)
    weight = GOLDEN["weight"].to(theirs[0].dtype)
    codes, *ours = naive.quantize(weight, bits, group)
    for mine, their in zip(ours, theirs, strict=True):
        assert mine.dtype == their.dtype and mine.equal(their)
    if weight.dtype == torch.float32:
        assert codes.equal(naive.unpack(words, bits))
        return

    def error(words: Tensor) -> Tensor:
        again = naive.dequantize(words, theirs[0], theirs[1], bits)
        return (again - weight.float()).square().sum()

    assert error(naive.pack(codes, bits)) < error(words), "codes of the scales as they are stored"


@pytest.mark.parametrize("bits", naive.BITS)
def test_codes_come_back(bits: int) -> None:
    codes = torch.randint(0, 2**bits, (3, 5, 96), dtype=torch.uint8)
    words = naive.pack(codes, bits)
    assert words.dtype == torch.uint32 and words.shape == (3, 5, 3 * bits)
    assert naive.unpack(words, bits).equal(codes)


def test_more_bits_are_nearer() -> None:
    weight = torch.randn(16, 256, generator=torch.Generator().manual_seed(0))

    def error(bits: int) -> float:
        codes, scales, biases = naive.quantize(weight, bits, 64)
        again = naive.dequantize(naive.pack(codes, bits), scales, biases, bits)
        return float((again - weight).square().mean().sqrt())

    errors = [error(bits) for bits in naive.BITS]
    assert errors == sorted(errors, reverse=True) and errors[0] < 0.6 and errors[-1] < 0.01
