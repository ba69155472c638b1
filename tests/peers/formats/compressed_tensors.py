"""Make the golden files of compressed-tensors, and of AWQ, which the package also reads.

    DIR/ct/bin/python -P tests/peers/formats/compressed_tensors.py

in an environment with compressed-tensors==0.20.0 and torch==2.13.0 (-P because this file has the
package's name). Keys are, for each case, `<case>.` with the suffixes of the compressed tensors, and
`.dequantized`, the decompressed weight. Scales are float32 except in cases that end in "bf16".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file
from torch import Tensor

ROOM = Path(__file__).parents[2] / "quant"
N, K = 16, 64
INT, FLOAT = {"type": "int"}, {"type": "float"}
GROUP = {"strategy": "group", "group_size": 32}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "packed.4.group": ("pack-quantized", {**INT, **GROUP, "num_bits": 4}),
    "packed.4.group.zeros": ("pack-quantized", {**INT, **GROUP, "num_bits": 4, "symmetric": False}),
    "packed.8.channel.zeros": (
        "pack-quantized",
        {**INT, "num_bits": 8, "strategy": "channel", "symmetric": False},
    ),
    "packed.3.channel": ("pack-quantized", {**INT, "num_bits": 3, "strategy": "channel"}),
    "packed.4.group.bf16": ("pack-quantized", {**INT, **GROUP, "num_bits": 4}),
    "int.8.channel": ("int-quantized", {**INT, "num_bits": 8, "strategy": "channel"}),
    "int.8.tensor.zeros": (
        "int-quantized",
        {**INT, "num_bits": 8, "strategy": "tensor", "symmetric": False},
    ),
    "float.8.tensor": ("float-quantized", {**FLOAT, "num_bits": 8, "strategy": "tensor"}),
    "float.8.channel.bf16": ("float-quantized", {**FLOAT, "num_bits": 8, "strategy": "channel"}),
    "float.8.block": (
        "float-quantized",
        {**FLOAT, "num_bits": 8, "strategy": "block", "block_structure": [12, 32]},
    ),
    "nvfp4": (
        "nvfp4-pack-quantized",
        {**FLOAT, "num_bits": 4, "strategy": "tensor_group", "group_size": 16},
    ),
}


def weight() -> Tensor:
    """Normal rows, and one that is constant, one-sided, or has a large outlier."""
    made = torch.randn(N, K, generator=torch.Generator().manual_seed(0))
    made[1], made[2], made[3, 7] = 0.25, made[2].abs() + 1, 9
    return made


def ranges(args: QuantizationArgs) -> tuple[Tensor, Tensor]:
    """The minimum and maximum weight of each group, in the shape of its scale."""
    made = weight()
    match args.strategy:
        case "tensor":
            return made.amin()[None], made.amax()[None]
        case "channel":
            return made.amin(-1, keepdim=True), made.amax(-1, keepdim=True)
        case "block":
            high, wide = args.block_structure
            blocks = [[block for block in row.split(wide, 1)] for row in made.split(high)]
            least = [torch.stack([block.amin() for block in row]) for row in blocks]
            most = [torch.stack([block.amax() for block in row]) for row in blocks]
            return torch.stack(least), torch.stack(most)
    groups = made.unflatten(-1, (-1, args.group_size))
    return groups.amin(-1), groups.amax(-1)


def compressed(format: str, args: QuantizationArgs, dtype: torch.dtype) -> dict[str, Tensor]:
    """The tensors of a case by suffix, and "dequantized"."""
    whole = torch.tensor([448 * 6 / float(weight().abs().max())])
    tensors = {"weight_global_scale": whole} if format.startswith("nvfp4") else {}
    least, most = ranges(args)
    scale, zero = calculate_qparams(
        least, most, args, global_scale=tensors.get("weight_global_scale")
    )
    tensors |= {
        "weight": weight().to(dtype),
        "weight_scale": scale.to(dtype),
        "weight_zero_point": zero,
    }
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    compressor = BaseCompressor.get_value_from_registry(format)
    made = compressor.compress(tensors, scheme)
    floats = compressor.decompress(made, scheme)["weight"]
    return {**made, "dequantized": floats}


def awq() -> dict[str, Tensor]:
    """Random words in AutoAWQ's layout; every word is valid."""
    generator = torch.Generator().manual_seed(0)
    words = [
        torch.randint(-(2**31), 2**31, (rows, N // 8), generator=generator).int()
        for rows in (K, K // 32)
    ]
    scales = torch.rand(K // 32, N, generator=generator).half()
    tensors = dict(zip(("qweight", "qzeros", "scales"), (*words, scales), strict=True))
    converter = AutoAWQConverter(group_size=32)
    read = converter.process({f"w.{name}": tensor for name, tensor in tensors.items()})
    read = {name.removeprefix("w."): tensor for name, tensor in read.items()}
    read["weight_scale"] = read["weight_scale"].float()
    args = QuantizationArgs(**INT, **GROUP, num_bits=4, symmetric=False)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    compressor = BaseCompressor.get_value_from_registry("pack-quantized")
    return {**tensors, "dequantized": compressor.decompress(read, scheme)["weight"]}


def save(family: str, golden: dict[str, Tensor]) -> None:
    path = ROOM / family / "golden.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in golden.items()}, path)
    print(f"{path}: {path.stat().st_size} bytes")


def main() -> None:
    golden: dict[str, Tensor] = {}
    for case, (format, said) in CASES.items():
        dtype = torch.bfloat16 if case.endswith("bf16") else torch.float32
        made = compressed(format, QuantizationArgs(**said), dtype)
        golden |= {f"{case}.{suffix}": tensor for suffix, tensor in made.items()}
    save("compressed_tensors", golden)
    save("awq", awq())


if __name__ == "__main__":
    main()
