"""Float weights become MXFP4, nearer than others make it; others' tensors are read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gguf
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
THEIRS = load_file(Path(__file__).parent / "mlx.safetensors")
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


def others() -> Iterator[tuple[str, Tensor, Tensor]]:
    """What mistral.rs, MLX and llama.cpp (in the gguf package) make of the weight."""
    for name, words, e in (
        ("mistral.rs", UQFF["weight"], UQFF["weight.scales"]),
        ("mlx", THEIRS["weight"].view(torch.uint8), THEIRS["scales"]),
    ):
        yield name, naive.from_hub(words.unflatten(-1, (-1, 16))), e
    packed = gguf.quantize(WEIGHT.float().numpy(), gguf.GGMLQuantizationType.MXFP4)
    blocks = torch.from_numpy(packed).unflatten(-1, (-1, 17))
    yield "llama.cpp", blocks[..., 1:], blocks[..., 0]


def off(q: Tensor, e: Tensor) -> Tensor:
    """The squared error of every block."""
    error = naive.dequantize(q, e, torch.float32) - WEIGHT.float()
    return error.unflatten(-1, (-1, naive.BLOCK)).square().sum(-1)


def test_no_block_is_farther_than_in_others_files() -> None:
    q, e = naive.quantize(WEIGHT)
    totals = {}
    for name, theirs, exponents in others():
        assert bool((off(q, e) <= off(theirs, exponents) * (1 + 1e-5)).all()), name
        assert bool((e.int() - exponents.int()).abs().max() <= 1), name
        totals[name] = float(off(theirs, exponents).sum() / off(q, e).sum())
    assert totals["mistral.rs"] > 2 and totals["llama.cpp"] > 1.02 and totals["mlx"] > 1.02, totals


@pytest.mark.parametrize("power", [-126, -60, 0, 60, 110])
def test_the_nearer_exponent_is_taken_at_any_size(power: int) -> None:
    """Of two blocks whose largest is 8, one is nearer where that is cut to 6."""
    many, one = torch.full((2, 32), 0.5)
    one[0] = 8
    many[:] = 8
    _, e = naive.quantize(torch.stack([many, one]) * 2.0**power)
    assert (e - 127 - power).tolist() == [[1], [0]]


def test_blocks_of_any_size_are_quantized() -> None:
    scale = torch.tensor([0, 2.0**-126, 1e-3, 1, 2.0**100])[:, None]
    weight = torch.tensor(naive.VALUES).repeat(2) * scale
    q, e = naive.quantize(weight)
    assert naive.dequantize(q, e, torch.float32)[[0, 1, 3, 4]].equal(weight[[0, 1, 3, 4]])
    assert e[0] == 127 and q[0].eq(0).all()
    far = (naive.dequantize(q, e, torch.float32)[2] - weight[2]).abs().max()
    assert far <= weight[2].max() / 6


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
    theirs = next(each for each in others() if each[0] == "mistral.rs")
    assert storage.dequantize().equal(naive.dequantize(*theirs[1:], torch.float32))
    saved = storage.save()
    assert saved.keys() == held.keys()
    assert all(saved[s].dtype == t.dtype and saved[s].equal(t) for s, t in held.items())


def test_malformed_tensors_are_rejected() -> None:
    read(UQFF)
    with pytest.raises(CheckpointError, match=r"but its format is 5"):
        read({**UQFF, "weight.format": torch.tensor(5, dtype=torch.uint8)})
    with pytest.raises(CheckpointError, match=r"blocks of shape .* for scales of shape \[32, 3\]"):
        read({**UQFF, "weight.scales": UQFF["weight.scales"][:, :3]})
