"""What mistral.rs wrote to UQFF files is read, and comes back: see tests/peers/formats/uqff.py."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ostro.core.nn.storage import Stored
from ostro.core.records import Quantizer, TensorInfo, resolve

NAMES = {torch.uint8: "U8", torch.uint32: "U32", torch.float8_e4m3fn: "F8_E4M3"}


@pytest.mark.parametrize(
    ("family", "format", "most"),
    [
        ("afq", "afq2", 0.5),
        ("afq", "afq3", 0.22),
        ("afq", "afq4", 0.11),
        ("afq", "afq6", 0.026),
        ("afq", "afq8", 0.0065),
        ("f8q8", "f8q8", 0.1),
        ("fp8", "fp8", 0.03),
        ("hqq", "hqq4", 0.1),
        ("hqq", "hqq8", 0.0065),
        ("mxfp4", "mxfp4", 0.2),
    ],
)
def test_a_weight_round_trips(family: str, format: str, most: float) -> None:
    golden = load_file(Path(__file__).parent / family / "uqff.safetensors")
    weight, front = golden["weight"].float(), f"{format}."
    tensors = {n.removeprefix(front): t for n, t in golden.items() if n.startswith(front)}
    infos = {
        suffix: TensorInfo(
            name=suffix, shape=tuple(t.shape), format=NAMES.get(t.dtype, "F32"), nbytes=t.nbytes
        )
        for suffix, t in tensors.items()
    }
    record: Quantizer
    (record,) = import_module(f"ostro.quant.{family}").ostro_quantizers()
    assert record.claims(infos, {})
    storage = resolve(record.storage).read(
        Stored(
            tensors=tensors,
            infos=infos,
            shape=tuple(weight.shape),
            device=torch.device("cpu"),
            dtype=torch.float32,
        )
    )
    error = (storage.dequantize() - weight).square().mean().sqrt() / weight.std()
    assert error < most
    saved = storage.save()
    assert saved.keys() == tensors.keys()
    for suffix, tensor in tensors.items():
        assert saved[suffix].dtype == tensor.dtype and saved[suffix].shape == tensor.shape
        assert saved[suffix].double().equal(tensor.double()), suffix
