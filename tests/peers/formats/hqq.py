"""Make the golden file of HQQ: a weight, quantized and dequantized by the hqq package.

    DIR/hqq/bin/python -P tests/peers/formats/hqq.py

in an environment with hqq==0.2.8.post1, torch==2.13.0 and safetensors (-P because this file has the
package's name). Keys are `weight` float32 [n, k] and, for each case
`<bits>.<group>.<axis>.<dtype>[.float]`, the layer's state dict and `.dequantized`; "float" means
that the codes are viewed as floats.
"""

from __future__ import annotations

from pathlib import Path

import torch
from hqq.core.quantize import BaseQuantizeConfig, HQQLinear
from safetensors.torch import save_file
from torch import Tensor

FILE = Path(__file__).parents[2] / "quant" / "hqq" / "golden.safetensors"
CASES = [f"{bits}.64.1.float32" for bits in ("8", "6", "5", "4", "3", "2", "1.58", "1")]
CASES += ["4.64.0.float32", "3.64.0.float32", "8.32.0.float32"]
CASES += ["4.64.1.float16", "3.64.0.float16.float", "2.128.1.bfloat16.float"]


def weight() -> Tensor:
    """Values with heavy tails, like trained weights; a constant row, and a group far from zero."""
    generator = torch.Generator().manual_seed(0)
    made = torch.randn(4, 128, generator=generator)
    made = 0.05 * made * made.abs()
    made[1, :64], made[2, 64:] = 0.25, made[2, 64:] + 1
    return made


def main() -> None:
    golden = {"weight": weight()}
    for case in CASES:
        *bits, group, axis, dtype = case.removesuffix(".float").split(".")
        config = BaseQuantizeConfig(
            nbits=float(".".join(bits)) if len(bits) > 1 else int(bits[0]),
            group_size=int(group),
            axis=int(axis),
            view_as_float=case.endswith(".float"),
        )
        layer = HQQLinear.from_weights(
            weight(), None, config, compute_dtype=getattr(torch, dtype), device="cpu"
        )
        golden |= {f"{case}.{name}": t.contiguous() for name, t in layer.state_dict().items()}
        golden[f"{case}.dequantized"] = layer.dequantize()
    save_file(golden, FILE)
    print(f"{FILE}: {FILE.stat().st_size} bytes, {len(CASES)} cases")


if __name__ == "__main__":
    main()
