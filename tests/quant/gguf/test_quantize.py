"""What is quantized errs no more than llama.cpp's own, whatever the weights, and never breaks."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ostro.core.errors import CheckpointError, Unsupported
from ostro.plugins.checkpoints.gguf.ggml import GGML_BY_NAME
from ostro.quant.gguf import blocks
from ostro.quant.gguf import quantize as module
from ostro.quant.gguf.naive import E2M1, NL, dequantize
from ostro.quant.gguf.quantize import quantize
from ostro.quant.gguf.schemes import FORMATS, Levels

PEER = runpy.run_path(str(Path(__file__).parents[2] / "peers" / "ggml_quantize.py"))
GOLDEN = json.loads(PEER["FILE"].read_text())
weights, squared = PEER["weights"], PEER["squared"]

FLOAT16 = 2.0**-11
"""What rounding to float16 changes at most."""


def after(weight: Tensor, format: str, importance: Tensor | None = None) -> Tensor:
    """The weight once it was quantized."""
    packed = quantize(weight, format, importance)
    assert packed.dtype == torch.uint8
    assert packed.shape == (len(weight), GGML_BY_NAME[format].row_bytes(weight.shape[1]))
    return dequantize(format, packed)


def random(*shape: int, std: float = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(shape[-1])) * std


@pytest.mark.parametrize("kind", PEER["KINDS"])
def test_the_golden_errors_are_those_of_these_weights(kind: str) -> None:
    for seed in PEER["SEEDS"]:
        weight, importance = weights(kind, seed)
        assert squared(weight) == pytest.approx(GOLDEN["squares"][kind]["plain"][seed])
        expected = GOLDEN["squares"][kind]["weighted"][seed]
        assert squared(weight, importance) == pytest.approx(expected)


@pytest.mark.sample(12)
@pytest.mark.parametrize("kind", PEER["KINDS"])
@pytest.mark.parametrize("format", FORMATS)
def test_errs_no_more_than_llama_cpp(format: str, kind: str) -> None:
    golden: Any = GOLDEN[format][kind]
    for seed in PEER["SEEDS"]:
        weight, importance = weights(kind, seed)
        plain = squared(weight - after(weight, format))
        weighted = squared(weight - after(weight, format, importance), importance)
        # Among powers of two there may be no better one.
        room = 1 + 1e-6 if format == "MXFP4" else 1
        assert plain <= golden["plain"][seed] * room
        assert weighted <= golden["weighted"][seed] * room


@pytest.mark.parametrize("format", FORMATS)
def test_zeros_stay_zeros(format: str) -> None:
    assert not after(torch.zeros(3, 512), format).any()
    weight = random(3, 512)
    weight[:, 64:96] = 0
    weight[:, 256:] = 0
    made = after(weight, format, torch.rand(512))
    assert not made[:, 256:].any()
    if format != "IQ4_NL":
        assert not made[:, 64:96].any(), "there is a code or an integer for them"


@pytest.mark.sample(48)
@pytest.mark.parametrize("constant", [1.0, -1.0, 0.75, -3e4, 3.3, -7.7])
@pytest.mark.parametrize("format", [each for each in FORMATS if each != "MXFP4"])
def test_constant_blocks_are_as_exact_as_float16(format: str, constant: float) -> None:
    weight = torch.full((2, 256), constant)
    made = after(weight, format)
    assert (made - weight).abs().max() <= FLOAT16 * abs(constant)
    halves = format in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "TQ1_0", "TQ2_0")
    if halves and torch.equal(weight.half().float(), weight):
        assert torch.equal(made, weight)


@pytest.mark.sample(34)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("std", [1e-42, 1e-20, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5])
def test_small_weights_are_at_least_as_good_as_zeros(format: str, std: float) -> None:
    weight = random(4, 512, std=std)
    error, nothing = squared(weight - after(weight, format)), squared(weight)
    assert error <= nothing
    if std >= 1e-6:
        assert error <= nothing / 2, "d is 0 or one of the smallest float16, but s need not be 0"


@pytest.mark.sample(34)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("huge", [1e5, -1e9, 3e38, -3e38])
def test_one_huge_weight_is_cut_off(format: str, huge: float) -> None:
    weight = random(2, 512, std=0.02)
    weight[0, 17] = huge
    made = after(weight, format)
    assert made.isfinite().all()
    low, high = FORMATS[format].range
    cut = min(max(huge, low), high)
    assert made[0, 17].item() == pytest.approx(cut, rel=0.15)
    if not format.startswith("IQ4"):
        rest = made[0].clone()
        rest[17] = 0
        assert rest.abs().max() <= max(2 * FLOAT16 * abs(cut), 0.1), "lost, but not blown up"
    assert torch.equal(made[1], after(weight[1:], format)[0])


@pytest.mark.parametrize("format", FORMATS)
def test_all_weights_may_be_huge(format: str) -> None:
    weight = random(2, 512, std=1e37)
    made = after(weight, format)
    assert made.isfinite().all() and (made * weight >= 0).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite_are_refused(value: float) -> None:
    weight = torch.zeros(700, 512)
    weight[555, 77] = weight[600, 1] = value
    with pytest.raises(CheckpointError, match=rf"row 555, column 77 is {value}.*download"):
        quantize(weight, "Q6_K")


def test_what_cannot_be_quantized_is_refused() -> None:
    weight = torch.zeros(2, 96)
    with pytest.raises(Unsupported, match=r"rows of 96 .* to Q4_K, whose blocks have 256; choose"):
        quantize(weight, "Q4_K")
    with pytest.raises(Unsupported, match="cannot be quantized to IQ1_S, only to Q4_0, Q4_1"):
        quantize(weight, "IQ1_S")
    with pytest.raises(CheckpointError, match=r"shape \[95\], expected \[96\]"):
        quantize(weight, "Q4_0", torch.ones(95))
    for bad in (-1.0, float("nan"), float("inf")):
        importance = torch.ones(96)
        importance[5] = bad
        with pytest.raises(CheckpointError, match="negative, NaN or Inf"):
            quantize(weight, "Q4_0", importance)


@pytest.mark.parametrize("format", FORMATS)
def test_only_proportions_of_importances_matter(format: str) -> None:
    weight, importance = random(8, 512), random(512).square()
    plain, weighted = quantize(weight, format), quantize(weight, format, importance)
    for constant in (1.0, 1e-40, 0.0, 1e30):
        assert torch.equal(quantize(weight, format, torch.full((512,), constant)), plain)
    assert torch.equal(quantize(weight, format, importance * 2.0**40), weighted)
    errors = [
        squared(weight - dequantize(format, packed), importance) for packed in (plain, weighted)
    ]
    assert errors[1] < errors[0]
    importance[:256] = 0
    assert after(weight, format, importance)[:, :256].isfinite().all()


@pytest.mark.sample(2)
@pytest.mark.parametrize("format", FORMATS)
def test_a_row_does_not_depend_on_the_others(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, importance = random(21, 768, std=0.02), random(768).square()
    whole = quantize(weight, format, importance)
    alone = torch.cat([quantize(row[None], format, importance) for row in weight])
    monkeypatch.setitem(module.CHUNK, "cpu", 4096)
    chunks = quantize(weight, format, importance)
    for other in (alone, chunks):
        # Where two scales are as good as each other, the last bit of a sum decides.
        assert (other != whole).float().mean() < 0.05
        errors = [squared(weight - dequantize(format, each), importance) for each in (other, whole)]
        assert errors[0] == pytest.approx(errors[1], rel=2e-3)
    bf16 = weight.bfloat16()
    assert torch.equal(quantize(bf16, format), quantize(bf16.float(), format))
    assert quantize(weight[:0], format).shape == (0, whole.shape[1])


@pytest.mark.parametrize("format", ["TQ1_0", "TQ2_0"])
def test_ternary_weights_keep_their_format(format: str) -> None:
    ternary = torch.randint(-1, 2, (8, 512), generator=torch.Generator().manual_seed(0))
    weight = ternary * torch.logspace(-3, 2, 8).half().float()[:, None]
    assert torch.equal(after(weight, format), weight)


def test_mxfp4_weights_keep_their_format() -> None:
    data = torch.randint(0, 256, (8, 17), generator=torch.Generator().manual_seed(0)).byte()
    data[:, 0] = torch.tensor([0, 1, 2, 100, 127, 150, 200, 240])
    data[:, 1] = 0x77
    weight = dequantize("MXFP4", data)
    assert torch.equal(after(weight, "MXFP4"), weight)


@pytest.mark.parametrize("format", FORMATS)
def test_written_blocks_are_what_naive_reads(format: str) -> None:
    scheme = FORMATS[format]
    groups = scheme.groups
    size, generator = GGML_BY_NAME[format].block, torch.Generator().manual_seed(0)

    def integers(levels: Any, *shape: int) -> Tensor:
        some = torch.randint(levels.first, levels.last + 1, shape, generator=generator)
        return levels.nearest(some.float()).to(torch.int16)

    q, one = integers(scheme.levels, 5, size), torch.ones(5, groups, dtype=torch.int16)
    s = one if scheme.scales is None else integers(scheme.scales, 5, groups)
    t = one if scheme.scales is None else integers(scheme.scales, 5, groups)
    d = torch.tensor([2.0**-20, 0.25, 1.0, 2.0, 2.0**9])
    m = torch.tensor([0.5, 3.0, 1.0, 0.125, 0.0])
    if scheme.minimum == "none":
        m = torch.zeros(5)
    expected = (d[:, None] * s)[..., None] * q.view(5, groups, -1) - (m[:, None] * t)[..., None]
    written = blocks.write(format, blocks.Codes(q, d, s, m, t))
    assert written.shape == (5, GGML_BY_NAME[format].nbytes)
    assert torch.equal(dequantize(format, written), expected.view(5, size))
    if format == "Q8_1":
        sums = written[:, 2:4].clone().view(torch.float16)[:, 0].float()
        torch.testing.assert_close(sums, (d * q.sum(1)).clamp(-65504, 65504), rtol=1e-3, atol=0)
    if format == "Q8_K":
        sums = written[:, -32:].clone().view(torch.int16)
        assert torch.equal(sums.long(), q.view(5, 16, 16).sum(-1))


@pytest.mark.parametrize("levels", [NL, E2M1, range(-8, 8), range(16), (-1, 1)])
def test_the_nearest_level(levels: Any) -> None:
    x = torch.linspace(-140, 140, 4481) if max(levels) > 100 else torch.linspace(-20, 20, 4001)
    nearest = Levels(levels).nearest(x)
    table = torch.tensor(levels, dtype=torch.float32)
    assert set(nearest.tolist()) == set(table.tolist())
    least = (x[:, None] - table).abs().amin(1)
    torch.testing.assert_close((x - nearest).abs(), least, rtol=0, atol=2e-6)
