"""A tiny llama as bitsandbytes saves it, served: its logits are those of the plain weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from ostro.quant.bnb import STATE, naive

GOLDEN = load_file(Path(__file__).parent / "golden.safetensors")
Packer = Callable[[Tensor], tuple[dict[str, Tensor], Tensor]]
MAP = GOLDEN["nf4.64.6x128.float32.weight.quant_map"]


def nf4(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """A weight in blocks of 64, by suffix, and what remains of it."""
    blocks = weight.view(-1, 64)
    absmax = blocks.abs().amax(-1)
    codes = (blocks / absmax[:, None])[..., None].sub(MAP).abs().argmin(-1)
    packed = naive.pack(codes.flatten().to(torch.uint8))
    said = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [*weight.shape]}
    parts = {
        "weight": packed[:, None],
        "weight.absmax": absmax,
        "weight.quant_map": MAP.clone(),
        f"{STATE}nf4": torch.tensor(list(json.dumps(said).encode()), dtype=torch.uint8),
    }
    return parts, naive.dequantize(packed, MAP, absmax, 64, 0, weight.numel()).view(weight.shape)


def int8(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    scb = weight.abs().amax(-1)
    q = (weight / scb[:, None] * 127).round().to(torch.int8)
    format = torch.zeros((), dtype=torch.uint8)
    return {"weight": q, "SCB": scb, "weight_format": format}, q * (scb * naive.STEP)[:, None]


@pytest.mark.parametrize(("packed", "format"), [(nf4, "NF4 (4"), (int8, "INT8 (8")])
def test_it_says_what_its_weights_say(packed: Packer, format: str, serve: Any) -> None:
    said = {"quant_method": "bitsandbytes"}
    off, explain = serve(lambda _, weight: packed(weight), quantization_config=said)
    assert off <= 1e-5
    assert any(format in line for line in explain)


def test_codes_that_are_saved_as_floats_are_no_reason_to_warn(
    serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """bitsandbytes' quant_storage."""

    def packed(name: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        parts, _ = nf4(weight)
        octets = parts["weight"].flatten()
        octets[-2:] = torch.tensor([0xFF, 0x7F])  # together a NaN of bfloat16
        held = (octets, MAP, parts["weight.absmax"], 64, 0, weight.numel())
        viewed = {"weight": octets.view(torch.bfloat16)[:, None]}
        return parts | viewed, naive.dequantize(*held).view(weight.shape)

    off, _ = serve(packed, quantization_config={"quant_method": "bitsandbytes"})
    assert off <= 1e-5 and "NaN or Inf" not in caplog.text
