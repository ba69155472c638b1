"""What mistral.rs wrote to a UQFF file is read, and comes back: see tests/peers/formats/uqff.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ostro.core.nn.storage import Stored
from ostro.core.records import TensorInfo
from ostro.quant import hqq as plugin
from ostro.quant.hqq.storage import Hqq

GOLDEN = load_file(Path(__file__).parent / "uqff.safetensors")
NAMES = {torch.uint8: "U8", torch.uint32: "U32", torch.float8_e4m3fn: "F8_E4M3"}


@pytest.mark.parametrize(("format", "most"), [("hqq4", 0.1), ("hqq8", 0.0065)])
def test_a_weight_round_trips(format: str, most: float) -> None:
    weight = GOLDEN["weight"].float()
    front = f"{format}."
    held = {n.removeprefix(front): t for n, t in GOLDEN.items() if n.startswith(front)}
    infos = {
        suffix: TensorInfo(
            name=suffix, shape=tuple(t.shape), format=NAMES.get(t.dtype, "F32"), nbytes=t.nbytes
        )
        for suffix, t in held.items()
    }
    (record,) = plugin.ostro_quantizers()
    assert record.claims(infos, {})
    storage = Hqq.read(
        Stored(
            tensors=held,
            infos=infos,
            shape=tuple(weight.shape),
            device=torch.device("cpu"),
            dtype=torch.float32,
        )
    )
    error = (storage.dequantize() - weight).square().mean().sqrt() / weight.std()
    assert error < most
    saved = storage.save()
    assert saved.keys() == held.keys()
    for suffix, tensor in held.items():
        assert saved[suffix].dtype == tensor.dtype and saved[suffix].shape == tensor.shape
        assert saved[suffix].double().equal(tensor.double()), suffix
