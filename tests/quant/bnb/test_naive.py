"""bitsandbytes' formats in plain torch equal its own numbers: see tests/peers/formats/bnb.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ostro.quant.bnb import naive

GOLDEN = load_file(Path(__file__).parent / "golden.safetensors")
CASES = sorted(name.removesuffix(".weight") for name in GOLDEN if name.endswith(".weight"))
CASES.remove("int8")


@pytest.mark.parametrize("case", CASES)
def test_codes_are_unpacked_as_bitsandbytes_does(case: str) -> None:
    mine = {name: t for name, t in GOLDEN.items() if name.startswith(f"{case}.weight")}
    held = {name.removeprefix(f"{case}."): t for name, t in mine.items()}
    (state,) = (bytes(t.tolist()) for name, t in held.items() if "quant_state" in name)
    said, absmax = json.loads(state), held["weight.absmax"]
    if "nested" in case:
        nested = (held["weight.nested_quant_map"], held["weight.nested_absmax"])
        absmax = naive.unnest(absmax, *nested, said["nested_blocksize"], said["nested_offset"])
    theirs, packed = GOLDEN[f"{case}.dequantized"], held["weight"].flatten()
    parts = (packed, held["weight.quant_map"], absmax, said["blocksize"])
    count = theirs.numel()
    ours = naive.dequantize(*parts, 0, count)
    assert ours.view(theirs.shape).to(theirs.dtype).equal(theirs)
    for start, stop in ((1, 2), (3, 20), (count - 1, count), (4, 4)):
        assert naive.dequantize(*parts, start, stop).equal(ours[start:stop])
    assert naive.pack(naive.unpack(packed, 0, count)).equal(packed)


def test_nested_scales_are_in_blocks_of_their_own() -> None:
    held = {name: GOLDEN[f"blocks.{name}"] for name in ("absmax", "nested_quant_map")}
    scales = GOLDEN["blocks.nested_absmax"]
    assert len(scales) == 3
    ours = naive.unnest(held["absmax"], held["nested_quant_map"], scales, 256, 0.0)
    assert ours.equal(GOLDEN["blocks.dequantized"])


def test_integers_are_multiplied_as_bitsandbytes_does() -> None:
    ours = naive.dequantize_int8(GOLDEN["int8.weight"], GOLDEN["int8.SCB"])
    assert ours.equal(GOLDEN["int8.dequantized"])


@pytest.mark.parametrize("count", [0, 1, 7, 64])
def test_codes_come_back(count: int) -> None:
    codes = torch.randint(0, 16, (count,), dtype=torch.uint8)
    assert naive.unpack(naive.pack(codes), 0, count).equal(codes)
