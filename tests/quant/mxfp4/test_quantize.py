"""Float weights become MXFP4 as mistral.rs makes them, and its and MLX's tensors are read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from ostro.core.errors import CheckpointError
from ostro.core.nn.storage import Stored
from ostro.core.records import TensorInfo
from ostro.quant import mxfp4 as plugin
from ostro.quant.mxfp4 import naive
from ostro.quant.mxfp4.storage import Mxfp4

GOLDEN = load_file(Path(__file__).parent / "uqff.safetensors")
WEIGHT = GOLDEN["weight"]
UQFF = {name.removeprefix("mxfp4."): t for name, t in GOLDEN.items() if name != "weight"}
MLX = {"weight": UQFF["weight"].view(torch.uint32), "scales": UQFF["weight.scales"]}
NAMES = {torch.uint8: "U8", torch.uint32: "U32"}


def infos(tensors: dict[str, Tensor]) -> dict[str, TensorInfo]:
    return {
        suffix: TensorInfo(
            name=f"w.{suffix}", shape=tuple(t.shape), format=NAMES[t.dtype], nbytes=t.nbytes
        )
        for suffix, t in tensors.items()
    }


def read(tensors: dict[str, Tensor]) -> Mxfp4:
    return Mxfp4.read(
        Stored(
            tensors=tensors,
            infos=infos(tensors),
            shape=tuple(WEIGHT.shape),
            device=torch.device("cpu"),
            dtype=torch.float32,
        )
    )


def test_weights_are_quantized_as_mistral_rs_does() -> None:
    q, e = naive.quantize(WEIGHT)
    assert naive.to_hub(q).flatten(-2).equal(UQFF["weight"])
    assert e.equal(UQFF["weight.scales"])


def test_blocks_of_any_size_are_quantized() -> None:
    scale = torch.tensor([0, 2.0**-126, 1e-3, 1, 2.0**100])[:, None]
    weight = torch.tensor(naive.VALUES).repeat(2) * scale
    q, e = naive.quantize(weight)
    assert naive.dequantize(q, e, torch.float32)[[0, 1, 3, 4]].equal(weight[[0, 1, 3, 4]])
    assert e[0] == 127 and q[0].eq(0).all()
    off = (naive.dequantize(q, e, torch.float32)[2] - weight[2]).abs().max()
    assert off <= 0.5 * weight[2].max()  # up to twice the largest value is cut to it


def test_a_storage_is_made() -> None:
    (record,) = plugin.ostro_quantizers()
    (format,) = record.makes
    made = Mxfp4.quantize(WEIGHT.expand(2, -1, -1), format.name, torch.float32)
    assert made.shape == (2, *WEIGHT.shape) and made.nbytes * 8 == format.bits * 2 * WEIGHT.numel()
    one = Mxfp4.quantize(WEIGHT, format.name, torch.float32)
    assert read(one.save()).dequantize().equal(made.dequantize()[: len(WEIGHT)])


@pytest.mark.parametrize("held", [UQFF, MLX], ids=["uqff", "mlx"])
def test_others_forms_are_read_and_come_back(held: dict[str, Tensor]) -> None:
    (record,) = plugin.ostro_quantizers()
    assert record.claims(infos(held), {})
    storage = read(held)
    assert storage.dequantize().equal(naive.dequantize(*naive.quantize(WEIGHT), torch.float32))
    saved = storage.save()
    assert saved.keys() == held.keys()
    assert all(saved[s].dtype == t.dtype and saved[s].equal(t) for s, t in held.items())


def test_lies_are_refused() -> None:
    read(UQFF)
    with pytest.raises(CheckpointError, match=r"but the file says format \[5\]"):
        read({**UQFF, "weight.format": torch.tensor(5, dtype=torch.uint8)})
    with pytest.raises(CheckpointError, match=r"blocks of shape .* beside scales of \[32, 3\]"):
        read({**UQFF, "weight.scales": UQFF["weight.scales"][:, :3]})
