"""A tiny llama as hqq saves it, served: its logits are those of the dequantized weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ostro.quant.hqq import checkpoint, naive
from ostro.quant.hqq.storage import Hqq


def across(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """A weight in groups of 64 across its rows, each from its least to its largest: as hqq saves
    it, and its values.
    """
    layout = checkpoint.hqq_layout(4, 64).with_shape(*weight.shape)
    layout = replace(layout, layout=layout.layout._replace(axis=0))
    groups = weight.reshape(layout.layout.matrix)
    scale = (groups.amax(0, keepdim=True) - groups.amin(0, keepdim=True)) / 15
    zero = -groups.amin(0, keepdim=True) / scale
    codes = (groups / scale + zero).round().clamp(0, 15).to(torch.uint8)
    words = naive.pack(codes, layout.layout)
    metadata = {**layout.metadata, "axis": torch.tensor(0)}
    saved = replace(layout, metadata=metadata).tensors(words, scale, zero)
    return saved, naive.dequantize_rows(slice(None), words, scale, zero, layout.layout)


def saved(name: str, weight: Tensor, axis: int) -> tuple[dict[str, Tensor], Tensor]:
    """A weight as hqq saves it, and what remains of it."""
    bits = "hqq8" if "down_proj" in name else "hqq3"
    if not axis:
        return across(weight)
    made = Hqq.quantize(weight, bits, torch.float32)
    return made.save(), made.dequantize()


def test_codes_that_are_viewed_as_floats_are_no_reason_to_warn(
    serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """hqq's view_as_float; a scale of NaN is 1."""
    looks = []

    def viewed(name: str, weight: Tensor, scale: float = 1.0) -> tuple[dict[str, Tensor], Tensor]:
        parts, meant = saved(name, weight, 1)
        parts["W_q"] = parts["W_q"].contiguous().view(torch.float16)
        looks.append(bool(parts["W_q"][[0, -1]].isfinite().all()))
        return parts | {"scale": parts["scale"] * scale}, meant

    off, _ = serve(viewed)
    assert not all(looks), "some codes look like NaN or Inf"
    assert off <= 1e-5 and "NaN or Inf" not in caplog.text
    serve(lambda name, weight: viewed(name, weight, float("nan")))
    assert "14 tensor(s) contain NaN or Inf" in caplog.text


@pytest.mark.parametrize("axis", [0, 1])
def test_it_says_what_its_weights_say(axis: int, serve: Any) -> None:
    off, explain = serve(lambda name, weight: saved(name, weight, axis))
    assert off <= 1e-5
    assert any("HQQ" in line for line in explain)
