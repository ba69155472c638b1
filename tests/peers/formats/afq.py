"""Make the golden file of MLX's affine formats: a weight, quantized and dequantized by MLX.

    DIR/mlx/bin/python tests/peers/formats/afq.py

in an environment with mlx[cpu]==0.32.4, safetensors and numpy. Keys are `weight` float32 [n, k]
and, for each case `<bits>.<group>.<dtype>`, MLX's `.weight`, `.scales`, `.biases` and
`.dequantized`.
"""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np

FILE = Path(__file__).parents[2] / "quant" / "afq" / "golden.safetensors"
CASES = [(bits, 64, mx.float32) for bits in (2, 3, 4, 5, 6, 8)]
CASES += [(3, 32, mx.float32), (4, 128, mx.float32), (4, 32, mx.float16), (6, 64, mx.bfloat16)]


def weight() -> mx.array:
    """Normal rows, and some that are constant, zero, one-sided, or have a large outlier."""
    made = np.random.default_rng(0).normal(size=(7, 128)).astype(np.float32)
    made[1], made[2], made[3] = 0, 0.75, np.abs(made[3]) + 3
    made[4], made[5, 7] = -np.abs(made[4]), 40
    return mx.array(made)


def main() -> None:
    golden = {"weight": weight()}
    for bits, group, dtype in CASES:
        case = f"{bits}.{group}.{str(dtype).rpartition('.')[2]}"
        packed = mx.quantize(golden["weight"].astype(dtype), group_size=group, bits=bits)
        for part, array in zip(("weight", "scales", "biases"), packed, strict=True):
            golden[f"{case}.{part}"] = array
        golden[f"{case}.dequantized"] = mx.dequantize(*packed, group_size=group, bits=bits)
    mx.save_safetensors(str(FILE), golden)
    print(f"{FILE}: {FILE.stat().st_size} bytes, {len(CASES)} cases")


if __name__ == "__main__":
    main()
