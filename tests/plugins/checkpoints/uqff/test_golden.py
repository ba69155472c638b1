"""Layers as mistral.rs stores them are read as what it says that they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from ostro.plugins.checkpoints.uqff import storages
from ostro.plugins.checkpoints.uqff.families import FAMILIES
from ostro.plugins.checkpoints.uqff.reader import open_uqff

N, K = 8, 256
Parts = Mapping[str, Tensor]

FORMATS: Mapping[str, float] = {
    **{"q2k": 0.4, "q3k": 0.2, "q4k": 0.1, "q5k": 0.05, "q6k": 0.03, "q8k": 0.01},
    **{"q4_0": 0.12, "q4_1": 0.1, "q5_0": 0.06, "q5_1": 0.05, "q8_0": 0.01, "q8_1": 0.01},
    **{"hqq4": 0.13, "hqq8": 0.01, "fp8": 0.04, "f8q8": 0.04, "mxfp4": 0.2},
    **{"afq2": 0.5, "afq3": 0.25, "afq4": 0.12, "afq6": 0.03, "afq8": 0.01},
}
"""The most that each format is off, as a share of the weight's norm."""

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def ggml(parts: Parts) -> Tensor:
    kind = GGMLQuantizationType(int(parts["weight.dtype"]))
    rows = parts["weight"].numpy().reshape(N, -1)
    if kind == GGMLQuantizationType.Q8_1:  # d and s of two bytes, 32 integers
        blocks = rows.reshape(-1, 36)
        d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
        return torch.from_numpy(d * blocks[:, 4:].view(np.int8)).view(N, K)
    if kind == GGMLQuantizationType.Q8_K:  # d of four bytes, 256 integers, their sums
        blocks = rows.reshape(-1, 292)
        d = blocks[:, :4].copy().view(np.float32)
        return torch.from_numpy(d * blocks[:, 4:260].view(np.int8)).view(N, K)
    return torch.from_numpy(dequantize(rows, kind))


def hqq(parts: Parts) -> Tensor:
    """Groups are columns of [64, weights / 64]; of 4 bits, the first 32 rows are high halves."""
    words = parts["weight"]
    codes = torch.cat((words >> 4, words & 15)) if int(parts["weight.bits"]) == 4 else words
    made = (codes.float() - parts["weight.zeros"]) * parts["weight.scales"]
    return made.view(N, K)


def fp8(parts: Parts) -> Tensor:
    return parts["weight"].float() * parts["weight.dequant_w_scale"]


def afq(parts: Parts) -> Tensor:
    """Codes lie end to end in the bits of a row, lowest first."""
    bits, group = int(parts["weight.bits"]), int(parts["weight.group_size"])
    rows = [int.from_bytes(row.numpy().tobytes(), "little") for row in parts["weight"]]
    codes = [[row >> j * bits & (1 << bits) - 1 for j in range(K)] for row in rows]
    scales = parts["weight.scales"].repeat_interleave(group, 1)
    return torch.tensor(codes) * scales + parts["weight.biases"].repeat_interleave(group, 1)


def f8q8(parts: Parts) -> Tensor:
    """mistral.rs divides by what its float8 crate calls the largest number, which is 416."""
    blocks = parts["weight"].view(-1, 33)
    d = blocks[:, :1].clone().view(torch.float8_e4m3fn).float() / 416
    return (blocks[:, 1:].clone().view(torch.int8) * d).view(N, K)


def mxfp4(parts: Parts) -> Tensor:
    """The low half of a byte is the even column."""
    words, scales = parts["weight"].int(), parts["weight.scales"].int()
    codes = torch.stack((words & 15, words >> 4), -1).flatten(1)
    return torch.ldexp(E2M1[codes], scales.repeat_interleave(32, 1) - 127)


TRUTH: Mapping[str, Callable[[Parts], Tensor]] = {
    **{"Gguf": ggml, "Hqq": hqq, "Fp8": fp8, "Afq": afq, "F8Q8": f8q8, "Mxfp4": mxfp4}
}


def truth(format: str, golden: Parts) -> Tensor:
    parts = {n.removeprefix(f"{format}/"): t for n, t in golden.items() if n.startswith(format)}
    return TRUTH[FAMILIES[int(parts["weight.format"])].name](parts)


@pytest.mark.parametrize("format", FORMATS)
def test_a_layer_is_read_as_it_was_meant(
    format: str, golden: Parts, layer: Any, put: Any, read: Any
) -> None:
    meant = truth(format, golden)
    off = (meant - golden["weight"]).norm() / golden["weight"].norm()
    assert off < FORMATS[format], f"{off = }: the truth is none"
    ours = read(open_uqff(put(layer(format)))).dequantize()
    torch.testing.assert_close(ours, meant, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_written_is_what_was_read(
    format: str, golden: Parts, layer: Any, put: Any, read: Any
) -> None:
    storage = read(open_uqff(put(layer(format))))
    again = storages.tensors("key", storage)
    held = {n.removeprefix(f"{format}/"): t for n, t in golden.items() if n.startswith(format)}
    assert again.keys() == held.keys()
    for suffix, tensor in held.items():
        assert again[suffix].dtype == tensor.dtype and again[suffix].shape == tensor.shape, suffix
        raw = (each.flatten().view(torch.uint8) for each in (again[suffix], tensor))
        assert torch.equal(*raw), suffix
    assert storages.stored_name(storage, again) == format
