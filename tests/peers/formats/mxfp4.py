"""Make a golden file of MLX's MXFP4: the weight in the UQFF golden file, quantized by MLX.

    DIR/mlx/bin/python tests/peers/formats/mxfp4.py

in an environment with mlx[cpu]==0.32.4. Keys are MLX's `weight` and `scales`.
"""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx

FOLDER = Path(__file__).parents[2] / "quant" / "mxfp4"
FILE = FOLDER / "mlx.safetensors"


def main() -> None:
    weight = mx.load(str(FOLDER / "uqff.safetensors"))["weight"]
    made = mx.quantize(weight.astype(mx.float32), group_size=32, bits=4, mode="mxfp4")
    mx.save_safetensors(str(FILE), dict(zip(("weight", "scales"), made, strict=True)))
    print(f"{FILE}: {FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
