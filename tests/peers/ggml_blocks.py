"""Make the golden file of the ggml formats that the gguf package cannot unpack.

    python tests/peers/ggml_blocks.py [--root DIR]

llama.cpp's functions unpack a few random blocks with normal, negative and subnormal scales:
`<format>.blocks` uint8 [blocks, bytes], `<format>.weights` float32 [blocks, elements]. Q8_1, for
which llama.cpp has a product but no unpacking, is multiplied with unit vectors.
"""

from __future__ import annotations

import argparse
import ctypes
from pathlib import Path

import torch
from environments import default_root
from safetensors.torch import save_file
from torch import Tensor

from ostro.plugins.checkpoints.gguf.ggml import GGML_BY_NAME

FILE = Path(__file__).parents[1] / "quant" / "gguf" / "blocks.safetensors"
SCALES = (0.0123, -1.7, 3e-6)
UNPACK = {
    "Q1_0": ("dequantize_row_q1_0", torch.float16),
    "Q2_0": ("dequantize_row_q2_0", torch.float16),
    "Q8_K": ("dequantize_row_q8_K", torch.float32),
}


def library(root: Path, name: str) -> ctypes.CDLL:
    (found,) = root.glob(f"llama_cpp/lib/python*/site-packages/llama_cpp/lib/lib{name}.so")
    return ctypes.CDLL(str(found), mode=ctypes.RTLD_GLOBAL)


def blocks(format: str, *scales: torch.dtype) -> Tensor:
    """Scales of these dtypes, followed by random bytes; one block for each of `SCALES`."""
    generator = torch.Generator().manual_seed(GGML_BY_NAME[format].id)
    shape = (len(SCALES), GGML_BY_NAME[format].nbytes)
    made = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    fields = [torch.tensor(SCALES, dtype=dtype)[:, None].view(torch.uint8) for dtype in scales]
    front = torch.cat(fields, 1)
    made[:, : front.shape[1]] = front
    return made


def unpack(base: ctypes.CDLL, function: str, blocks: Tensor, size: int) -> Tensor:
    weights = torch.empty(len(blocks), size)
    call = getattr(base, function)
    call.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64
    call(blocks.data_ptr(), weights.data_ptr(), weights.numel())
    return weights


def multiply_by_units(cpu: ctypes.CDLL, blocks: Tensor) -> Tensor:
    """Q8_1 blocks times Q4_1 blocks with d = 1, m = 0, a single code 1 and all other codes 0."""
    size, integer = ctypes.c_size_t, ctypes.c_int
    pointer = ctypes.c_void_p
    call = cpu.ggml_vec_dot_q4_1_q8_1
    call.argtypes = integer, pointer, size, pointer, size, pointer, size, integer
    cpu.ggml_cpu_init()
    weights = torch.empty(len(blocks), 32)
    for row, block in enumerate(blocks):
        for i in range(32):
            unit = torch.zeros(20, dtype=torch.uint8)
            unit[:2] = torch.ones(1, dtype=torch.float16).view(torch.uint8)
            unit[4 + i % 16] = 1 if i < 16 else 16
            call(32, weights[row, i:].data_ptr(), 0, unit.data_ptr(), 0, block.data_ptr(), 0, 1)
    return weights


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, default=default_root())
    root = parser.parse_args().root
    base, cpu = library(root, "ggml-base"), library(root, "ggml-cpu")
    golden = {}
    for format, (function, scale) in UNPACK.items():
        made = blocks(format, scale)
        golden[f"{format}.blocks"] = made
        golden[f"{format}.weights"] = unpack(base, function, made, GGML_BY_NAME[format].block)
    made = blocks("Q8_1", torch.float16, torch.float16)
    golden["Q8_1.blocks"], golden["Q8_1.weights"] = made, multiply_by_units(cpu, made)
    save_file(golden, FILE)
    print(f"{FILE}: {', '.join(golden)}")


if __name__ == "__main__":
    main()
