"""HQQ in plain torch equals the hqq package's own numbers: see tests/peers/formats/hqq.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from ostro.quant.hqq import naive, solver
from ostro.quant.hqq.naive import PACKING, PACKINGS, Layout

GOLDEN = load_file(Path(__file__).parent / "golden.safetensors")
WEIGHT = GOLDEN["weight"]
CASES = sorted(name.removesuffix(".dequantized") for name in GOLDEN if "dequantized" in name)


def state(case: str) -> dict[str, Tensor]:
    """What hqq saved of a case's layer."""
    mine = {name.removeprefix(f"{case}."): t for name, t in GOLDEN.items() if case in name}
    return {name: t for name, t in mine.items() if "." not in name and name != "dequantized"}


def layout(case: str) -> Layout:
    said = state(case)
    packing = PACKINGS[bytes(said["packing"].tolist()).decode()]
    bits = 2 if case.startswith("1.58") else int(said["nbits"])
    return Layout((4, 128), bits, int(said["group_size"]), int(said["axis"]), packing)


@pytest.mark.parametrize("case", CASES)
def test_codes_are_unpacked_as_hqq_does(case: str) -> None:
    said, theirs, lies = state(case), GOLDEN[f"{case}.dequantized"], layout(case)
    words = said["W_q"].flatten().view(lies.packing.word).view(lies.words)
    ours = naive.dequantize_rows(slice(None), words, said["scale"], said["zero"], lies)
    if theirs.dtype == torch.float32:
        assert ours.equal(theirs)
    codes = naive.unpack(words, lies).to(theirs.dtype)
    rounded = (codes - said["zero"]) * said["scale"]
    assert rounded.view(4, 128).equal(theirs), "hqq rounds what it computes in halves"
    some = naive.dequantize_rows(slice(1, 3), words, said["scale"], said["zero"], lies)
    assert some.equal(ours[1:3])
    assert naive.pack(naive.unpack(words, lies), lies).equal(words)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("bits", PACKING)
def test_codes_come_back(bits: int, axis: int) -> None:
    lies = Layout((8, 120), bits, 24, axis, PACKINGS[PACKING[bits]])
    codes = torch.randint(0, 2**bits, lies.matrix, dtype=torch.uint8)
    assert naive.unpack(naive.pack(codes, lies), lies).equal(codes)


@pytest.mark.parametrize("case", [case for case in CASES if ".64.1.float32" in case])
def test_our_zeros_are_no_worse_than_those_of_hqq(case: str) -> None:
    codes, scale, zero = solver.solve(WEIGHT, layout(case).bits, 64)
    groups = codes.unflatten(-1, (-1, 64)).float()
    ours = ((groups - zero.float()[..., None]) * scale.float()[..., None]).flatten(-2)
    theirs = GOLDEN[f"{case}.dequantized"]
    assert (ours - WEIGHT).abs().mean() <= (theirs - WEIGHT).abs().mean()
    assert (ours - WEIGHT).square().mean() <= (theirs - WEIGHT).square().mean()


@pytest.mark.parametrize("bits", PACKING)
@pytest.mark.parametrize(
    "weight",
    [torch.zeros(64), torch.full((64,), 0.75), torch.linspace(5, 5.001, 64), torch.arange(64.0)],
    ids=["zeros", "flat", "far", "steps"],
)
def test_odd_groups_are_solved(weight: Tensor, bits: int) -> None:
    codes, scale, zero = solver.solve(weight[None], bits, 64)
    ours = (codes.float() - zero.float()) * scale.float()
    step = max(float(weight.max() - weight.min()) / (2**bits - 1), float(weight.max()) / 2048)
    assert int(codes.max()) < 2**bits and zero.isfinite().all()
    assert ((ours - weight).abs() <= 0.75 * step + 1e-6).all()


def test_large_errors_pull_less() -> None:
    weight = torch.randn(256, 64, generator=torch.Generator().manual_seed(0)) * 0.02
    weight[:, 5] = 1
    codes, scale, zero = solver.solve(weight, 2, 64)
    ours = (codes.float() - zero.float()) * scale.float()
    low, top = weight.amin(-1, keepdim=True), 3
    step = (weight.amax(-1, keepdim=True) - low) / top
    plain = ((weight - low) / step).round() * step + low
    assert (ours - weight).abs().mean() < 0.5 * (plain - weight).abs().mean()
