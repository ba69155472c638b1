"""F8Q8: the bytes come back, every verb agrees, and lies are refused."""

from __future__ import annotations

from math import ceil

import pytest
import torch
from torch import Tensor

from ostro.core.errors import CheckpointError, Unsupported
from ostro.core.nn import Dequantized
from ostro.core.nn.storage import Storage, Stored
from ostro.core.records import TensorInfo
from ostro.plugins.conformance.formats import target_of
from ostro.quant import f8q8 as plugin
from ostro.quant.f8q8 import naive
from ostro.quant.f8q8.storage import F8Q8

N, K = 24, 96
(RECORD,) = plugin.ostro_quantizers()


def tensors(n: int = N, k: int = K) -> dict[str, Tensor]:
    """A weight of random blocks as a UQFF file holds it."""
    generator = torch.Generator().manual_seed(k)
    blocks = torch.randint(0, 256, (ceil(n * k / 32), 33), generator=generator).to(torch.uint8)
    blocks[:, 0] = torch.randint(40, 60, (len(blocks),), generator=generator)
    return {
        "weight": blocks.flatten(),
        "weight.format": torch.tensor(5, dtype=torch.uint8),
        "weight.num_blocks": torch.tensor(len(blocks)).to(torch.uint32),
        "weight.shape": torch.tensor([n, k]).to(torch.uint32),
    }


def infos(tensors: dict[str, Tensor]) -> dict[str, TensorInfo]:
    return {
        suffix: TensorInfo(
            name=f"w.{suffix}",
            shape=tuple(t.shape),
            format={torch.uint8: "U8"}.get(t.dtype, "U32"),
            nbytes=t.nbytes,
            file="f-0.uqff",
        )
        for suffix, t in tensors.items()
    }


def read(tensors: dict[str, Tensor], n: int = N, k: int = K) -> Storage:
    return F8Q8.read(
        Stored(
            tensors=tensors,
            infos=infos(tensors),
            shape=(n, k),
            device=torch.device("cpu"),
            dtype=torch.float32,
        )
    )


def test_the_record_claims_what_uqff_files_hold() -> None:
    found = infos(tensors())
    assert RECORD.claims(found, {})
    for suffix in found:
        assert not RECORD.claims({s: info for s, info in found.items() if s != suffix}, {})
    assert not RECORD.claims({**found, "weight.dtype": found["weight"]}, {})


@pytest.mark.parametrize("k", [96, 50, 7])
@pytest.mark.parametrize("finalized", [False, True])
def test_it_says_what_the_blocks_say(k: int, finalized: bool) -> None:
    held = tensors(k=k)
    storage, x = read(held, k=k), torch.randn(5, k)
    if finalized:
        assert storage.finalize(target_of(storage, exact=True)).startswith("F8Q8")
    plain = naive.dequantize(held["weight"].view(-1, 33)).flatten()[: N * k].view(N, k)
    assert type(storage) is (F8Q8 if k == 96 else Dequantized)
    for start, stop in ((0, None), (3, 9), (N - 1, N), (5, 5)):
        assert storage.dequantize(start, stop).equal(plain[start:stop])
    torch.testing.assert_close(storage.matmul(x), x @ plain.t(), rtol=1e-4, atol=1e-3)
    ids = torch.tensor([3, 0, 3])
    assert storage.rows(ids).equal(plain[ids])
    saved = storage.save()
    assert saved.keys() == held.keys()
    assert all(saved[s].dtype == t.dtype and saved[s].equal(t) for s, t in held.items())
    assert storage.nbytes >= N * k


def test_it_is_fused_and_stacked() -> None:
    storage = read(tensors())
    plain = storage.dequantize()
    fused = F8Q8.fuse([storage, read(tensors(8), 8)])
    assert fused is not None and read(fused.save(), N + 8).dequantize().equal(fused.dequantize())
    stacked, x = F8Q8.stack([storage, storage]), torch.randn(3, K)
    assert stacked is not None
    y = stacked.grouped(x, torch.tensor([0, 0, 1]))
    torch.testing.assert_close(y, x @ plain.t(), rtol=1e-4, atol=1e-3)


def test_float_weights_are_quantized() -> None:
    weight = torch.randn(2, N, K, generator=torch.Generator().manual_seed(0)).bfloat16()
    made = F8Q8.quantize(weight, "f8q8", torch.float32)
    (format,) = RECORD.makes
    assert made.shape == (2, N, K) and made.nbytes * 8 == format.bits * weight.numel()
    truth = weight.flatten(0, 1).float()
    assert (made.dequantize() - truth).square().mean().sqrt() < 0.01
    one = F8Q8.quantize(weight[1], "f8q8", torch.float32)
    assert read(one.save()).dequantize().equal(made.dequantize()[N:])


@pytest.mark.parametrize(
    ("suffix", "wrong", "says"),
    [
        ("format", torch.tensor(4), r"w\.weight has the tensors of F8Q8, .* format is 4"),
        ("num_blocks", torch.tensor(17), "num_blocks=17"),
        ("num_blocks", torch.zeros(0), r"num_blocks is \[\], expected one finite number"),
        ("shape", torch.tensor(N), r"w\.weight\.shape is \[24\], but"),
        ("shape", torch.tensor([N, 95]), r"w\.weight\.shape is \[24, 95\], but"),
        ("", torch.zeros(72 * 33 - 1, dtype=torch.uint8), "has 2375 bytes and num_blocks=72"),
        ("", torch.full((72 * 33,), 127, dtype=torch.uint8), "scales that are NaN or Inf"),
    ],
)
def test_malformed_tensors_are_rejected(suffix: str, wrong: Tensor, says: str) -> None:
    held = tensors()
    read(held)
    with pytest.raises(CheckpointError, match=rf"f-0\.uqff: .*{says}"):
        read({**held, f"weight.{suffix}".rstrip("."): wrong})


def test_ragged_rows_are_refused_where_each_must_be_reproducible() -> None:
    storage = read(tensors(k=50), k=50)
    assert "50 columns are not a multiple of 32" in storage.finalize(target_of(storage))
    with pytest.raises(Unsupported, match="remove --deterministic"):
        storage.finalize(target_of(storage, deterministic=True))
