"""A tiny llama in F8Q8, served: its logits are those of the dequantized weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ostro.quant.f8q8.storage import F8Q8


def test_it_says_what_its_weights_say(serve: Any) -> None:
    def packed(name: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        made = F8Q8.quantize(weight, "f8q8", torch.float32)
        return made.save(), made.dequantize()

    off, explain = serve(packed, whole=True)
    assert off <= 1e-5
    assert any("F8Q8 (8 bits" in line for line in explain)
