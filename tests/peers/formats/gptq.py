"""Make the golden file of GPTQ: packed weights, and the weights dequantized by gptqmodel.

    DIR/gptq/bin/python tests/peers/formats/gptq.py

in an environment with gptqmodel==7.7.0, which declares torch>=2.14.1; the committed file was made
with the sources of that version under torch 2.13.0. Words are random, since every word is valid.
Zero points that are stored minus one are never 0, which gptqmodel reads in two ways. Keys are, for
each case `<bits>.<format>.<order>`, the tensors `.qweight`, `.qzeros`, `.scales` and `.g_idx` of a
checkpoint, and `.dequantized` float32 [n, k]. Orders are "plain", "act", and "uneven" with a short
last group.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from gptqmodel.utils.model_dequant import convert_gptq_file
from safetensors.torch import save_file
from torch import Tensor

FILE = Path(__file__).parents[2] / "quant" / "gptq" / "golden.safetensors"
CASES = ["2.gptq.plain", "3.gptq.plain", "3.gptq_v2.act", "4.gptq.plain", "4.gptq.act"]
CASES += ["4.gptq_v2.uneven", "8.gptq.plain", "8.gptq_v2.act"]
K, GROUP, UNEVEN = 64, 32, 48


def stored(case: str) -> dict[str, Tensor]:
    """The tensors of a case, by suffix."""
    bits, order = int(case[0]), case.rpartition(".")[2]
    n = 32 if bits == 3 else 16
    generator = torch.Generator().manual_seed(CASES.index(case))
    groups = torch.arange(K, dtype=torch.int32) // (UNEVEN if order == "uneven" else GROUP)
    if order == "act":
        groups = groups[torch.randperm(K, generator=generator)]
    count = int(groups.max()) + 1
    qweight = torch.randint(-(2**31), 2**31, (K * bits // 32, n), generator=generator).int()
    fields = torch.randint(0, 2**bits - 1, (count, n), generator=generator)
    qzeros = torch.zeros(count, n * bits // 32, dtype=torch.int64)
    for i in range(n):
        word, shift = divmod(i * bits, 32)
        qzeros[:, word] |= fields[:, i] << shift & 0xFFFFFFFF
        if shift + bits > 32:
            qzeros[:, word + 1] |= fields[:, i] >> 32 - shift
    scales = (0.01 + torch.rand(count, n, generator=generator)).half()
    return {"qweight": qweight, "qzeros": qzeros.int(), "scales": scales, "g_idx": groups}


def main() -> None:
    golden: dict[str, Tensor] = {}
    with TemporaryDirectory() as folder:
        for case in CASES:
            bits, format, _ = case.split(".")
            path = Path(folder) / "model.safetensors"
            found = {f"w.{suffix}": tensor for suffix, tensor in stored(case).items()}
            save_file(found, path)
            config = {"bits": int(bits), "checkpoint_format": format}
            floats = convert_gptq_file(path, torch.float32, config, "cpu")
            golden |= {name.replace("w.", f"{case}.", 1): t for name, t in found.items()}
            golden[f"{case}.dequantized"] = floats["w.weight"]
    save_file(golden, FILE)
    print(f"{FILE}: {FILE.stat().st_size} bytes, {len(CASES)} cases")


if __name__ == "__main__":
    main()
