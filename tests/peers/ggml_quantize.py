"""Make the golden file of the quantization errors of llama.cpp's quantizers.

    python tests/peers/ggml_quantize.py [--root DIR]

errors.json contains, by format, kind of weights, and with or without importances, the squared error
for each of `SEEDS`, weighted by the importances if given; and the sum of the squared weights, which
reveals a change of numpy's random numbers. The error is also weighted for formats for which
llama.cpp ignores importances.
"""

from __future__ import annotations

import argparse
import ctypes
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ostro.plugins.checkpoints.gguf.ggml import GGML_BY_NAME
from ostro.quant.gguf.naive import dequantize
from ostro.quant.gguf.schemes import FORMATS

FILE = Path(__file__).parents[1] / "quant" / "gguf" / "errors.json"
KINDS = ("gaussian", "student", "uniform", "outliers")
SEEDS = (0, 1)
N, K = 64, 1024
REFERENCE = {"Q8_1": "quantize_row_q8_1_ref", "Q8_K": "quantize_row_q8_K_ref"}


def weights(kind: str, seed: int) -> tuple[Tensor, Tensor]:
    """Weights [N, K] of a kind, and importances [K] distributed as in a language model's layer."""
    random = np.random.default_rng([seed, KINDS.index(kind)])
    if kind == "student":
        made = random.standard_t(3, (N, K)) / 50
    elif kind == "uniform":
        made = random.uniform(-0.05, 0.05, (N, K))
    else:
        made = random.standard_normal((N, K)) / 50
    if kind == "outliers":
        made[:, random.choice(K, K // 64, replace=False)] *= 30
    inputs = random.standard_normal((16, K)) * np.exp(random.standard_normal(K) / 2)
    return torch.from_numpy(made).float(), torch.from_numpy((inputs**2).mean(0)).float()


def squared(error: Tensor, importance: Tensor | None = None) -> float:
    """The sum of squares, weighted by importances if given."""
    squares = error.double().square()
    return (squares if importance is None else squares * importance.double()).sum().item()


def quantize(base: ctypes.CDLL, format: str, weight: Tensor, importance: Tensor | None) -> Tensor:
    kind = GGML_BY_NAME[format]
    out = torch.zeros(N, kind.row_bytes(K), dtype=torch.uint8)
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    if format in REFERENCE:
        call = getattr(base, REFERENCE[format])
        call.argtypes = pointer, pointer, integer
        call(weight.data_ptr(), out.data_ptr(), weight.numel())
        return out
    call = base.ggml_quantize_chunk
    call.argtypes = ctypes.c_int, pointer, pointer, integer, integer, integer, pointer
    call.restype = ctypes.c_size_t
    base.ggml_quantize_init(kind.id)
    beside = None if importance is None else importance.data_ptr()
    size = call(kind.id, weight.data_ptr(), out.data_ptr(), 0, N, K, beside)
    assert size == out.numel(), f"{format = } {size = }"
    return out


def main() -> None:
    from environments import default_root

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, default=default_root())
    place = "llama_cpp/lib/python*/site-packages/llama_cpp/lib/libggml-base.so"
    (found,) = parser.parse_args().root.glob(place)
    base = ctypes.CDLL(str(found))
    cases = {kind: [weights(kind, seed) for seed in SEEDS] for kind in KINDS}
    golden: dict[str, dict[str, dict[str, list[float]]]] = {"squares": {}}
    for kind, made in cases.items():
        golden["squares"][kind] = {
            "plain": [squared(weight) for weight, _ in made],
            "weighted": [squared(*case) for case in made],
        }
    for format in FORMATS:
        errors = golden[format] = {}
        for kind, made in cases.items():
            errors[kind] = {"plain": [], "weighted": []}
            for weight, importance in made:
                for how, given in (("plain", None), ("weighted", importance)):
                    packed = quantize(base, format, weight, given)
                    error = weight - dequantize(format, packed)
                    errors[kind][how].append(squared(error, given))
    FILE.write_text(json.dumps(golden, indent=1) + "\n")
    print(f"{FILE}: {', '.join(golden)}")


if __name__ == "__main__":
    main()
