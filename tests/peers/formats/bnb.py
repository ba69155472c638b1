"""Make the golden file of bitsandbytes: weights, quantized and dequantized by it.

    DIR/bnb/bin/python tests/peers/formats/bnb.py

in an environment with bitsandbytes==0.50.2, torch==2.13.0 and safetensors. Keys begin with a case:
`int8`, `blocks` (values in more than one block, as for nested scales), or
`<type>.<block>.<n>x<k>.<dtype>[.nested]`. `.dequantized` is the dequantized weight; the others have
the names of checkpoints. For rows of partial blocks, bitsandbytes' AVX-512 kernel uses scales of
wrong blocks. Its plain code is used for them, which otherwise agrees with the kernel.
"""

from __future__ import annotations

from pathlib import Path

import torch
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from bitsandbytes.backends.utils import _get_4bit_code
from bitsandbytes.functional import (
    dequantize_4bit,
    dequantize_blockwise,
    int8_vectorwise_dequant,
    int8_vectorwise_quant,
    quantize_4bit,
    quantize_blockwise,
)
from safetensors.torch import save_file
from torch import Tensor

FILE = Path(__file__).parents[2] / "quant" / "bnb" / "golden.safetensors"
CASES = ["nf4.64.6x128.float32", "fp4.64.6x128.float32", "nf4.64.20x128.float32.nested"]
CASES += ["fp4.128.6x96.float32.nested", "nf4.64.5x50.float32", "fp4.64.3x7.float32.nested"]
CASES += ["nf4.64.4x64.bfloat16.nested"]


def weight(n: int, k: int) -> Tensor:
    made = 0.05 * torch.randn(n, k, generator=torch.Generator().manual_seed(n + k))
    made[0], made[1, 3] = 0, 1
    return made


def four(case: str) -> dict[str, Tensor]:
    kind, block, size, dtype, *nested = case.split(".")
    plain = weight(*map(int, size.split("x"))).to(getattr(torch, dtype))
    packed, state = quantize_4bit(
        plain, blocksize=int(block), quant_type=kind, compress_statistics=bool(nested)
    )
    made = {f"weight.{name}": t for name, t in state.as_dict(packed=True).items()}
    absmax = state.absmax
    if nested:
        absmax = dequantize_blockwise(absmax, state.state2) + state.offset
    code = _get_4bit_code(kind, packed.device)
    again = _dequantize_4bit_compute(
        packed.flatten(), absmax, code, int(block), plain.shape, plain.dtype
    )
    if plain.shape[1] % int(block) == 0:
        assert again.equal(dequantize_4bit(packed, state)), case
    return made | {"weight": packed, "dequantized": again}


def eight() -> dict[str, Tensor]:
    q, scb, _ = int8_vectorwise_quant(weight(6, 96).half())
    return {"weight": q, "SCB": scb, "dequantized": int8_vectorwise_dequant(q, scb)}


def blocks() -> dict[str, Tensor]:
    q, state = quantize_blockwise(weight(6, 100).flatten(), blocksize=256)
    made = {"absmax": q, "nested_absmax": state.absmax, "nested_quant_map": state.code}
    return made | {"dequantized": dequantize_blockwise(q, state)}


def main() -> None:
    golden = {f"int8.{name}": t for name, t in eight().items()}
    golden |= {f"blocks.{name}": t for name, t in blocks().items()}
    for case in CASES:
        golden |= {f"{case}.{name}": t.contiguous() for name, t in four(case).items()}
    save_file(golden, FILE)
    print(f"{FILE}: {FILE.stat().st_size} bytes, {len(CASES) + 2} cases")


if __name__ == "__main__":
    main()
