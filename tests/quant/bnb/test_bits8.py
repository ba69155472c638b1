"""Bits8: what bitsandbytes saved comes back, verbs agree, and lies are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from ostro.core.errors import CheckpointError, Unsupported
from ostro.core.nn import Dequantized
from ostro.core.nn.storage import Storage, Stored
from ostro.core.records import TensorInfo
from ostro.plugins.conformance.formats import target_of
from ostro.quant import bnb as plugin
from ostro.quant.bnb.bits8 import Bits8

(_, RECORD) = plugin.ostro_quantizers()
GOLDEN = load_file(Path(__file__).parent / "golden.safetensors")
N, K = 6, 96


def held(k: int = K) -> dict[str, Tensor]:
    """What bitsandbytes saved, its first columns."""
    said = {"SCB": GOLDEN["int8.SCB"], "weight_format": torch.zeros((), dtype=torch.uint8)}
    return {"weight": GOLDEN["int8.weight"][:, :k].contiguous(), **said}


def infos(tensors: dict[str, Tensor]) -> dict[str, TensorInfo]:
    return {
        suffix: TensorInfo(
            name=f"w.{suffix}",
            shape=tuple(t.shape),
            format={torch.int8: "I8", torch.uint8: "U8"}.get(t.dtype, "F32"),
            nbytes=t.nbytes,
            file="f.safetensors",
        )
        for suffix, t in tensors.items()
    }


def read(tensors: dict[str, Tensor], n: int = N) -> Storage:
    return Bits8.read(
        Stored(
            tensors=tensors,
            infos=infos(tensors),
            shape=(n, tensors["weight"].shape[-1]),
            device=torch.device("cpu"),
            dtype=torch.float32,
        )
    )


def test_the_record_claims_int8_and_no_other() -> None:
    found = infos(held())
    assert RECORD.claims(found, {})
    assert RECORD.claims({s: info for s, info in found.items() if s != "weight_format"}, {})
    assert not RECORD.claims({s: info for s, info in found.items() if s != "SCB"}, {})
    assert not RECORD.claims({**found, "weight": found["SCB"]}, {})
    assert not RECORD.claims({**found, "weight_scale": found["SCB"]}, {})


@pytest.mark.parametrize("k", [K, 50], ids=["planes", "ragged"])
@pytest.mark.parametrize("finalized", [False, True])
def test_it_says_what_bitsandbytes_says(k: int, finalized: bool) -> None:
    tensors, x = held(k), torch.randn(5, k)
    storage, theirs = read(tensors), GOLDEN["int8.dequantized"][:, :k]
    assert storage.nbytes == N * k + 4 * N
    assert type(storage) is (Bits8 if k == K else Dequantized)
    if finalized:
        assert storage.finalize(target_of(storage, exact=True)).startswith("INT8")
    ours = storage.dequantize()
    assert ours.equal(theirs) or k == K
    torch.testing.assert_close(ours, theirs, rtol=2.0**-22, atol=0)
    assert storage.dequantize(1, 3).equal(ours[1:3])
    torch.testing.assert_close(storage.matmul(x), x @ ours.t(), rtol=1e-4, atol=1e-4)
    ids = torch.tensor([3, 0, 3])
    assert storage.rows(ids).equal(ours[ids])
    saved = storage.save()
    assert saved.keys() == tensors.keys()
    assert all(saved[s].dtype == t.dtype and saved[s].equal(t) for s, t in tensors.items())


def test_it_is_fused_and_stacked() -> None:
    storage = read(held())
    plain = storage.dequantize()
    fused = Bits8.fuse([storage, storage])
    assert fused is not None and fused.dequantize().equal(torch.cat([plain, plain]))
    again = read(fused.save(), 2 * N)
    torch.testing.assert_close(again.dequantize(), fused.dequantize(), rtol=2.0**-22, atol=0)
    stacked, x = Bits8.stack([storage, storage]), torch.randn(3, K)
    assert stacked is not None
    y = stacked.grouped(x, torch.tensor([0, 1, 1]))
    torch.testing.assert_close(y, x @ plain.t(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("suffix", "wrong", "says"),
    [
        ("SCB", torch.zeros(5), r"w\.SCB has shape \[5\]"),
        ("SCB", torch.zeros(6).half(), "float16, expected"),
        ("SCB", torch.full((6,), torch.nan), "contains NaN or Inf"),
        ("weight_format", torch.tensor(2, dtype=torch.uint8), "tiled GPU layout"),
        ("weight", torch.zeros(6, dtype=torch.int8), r"expected one float32 per row of \[6\]"),
    ],
)
def test_malformed_tensors_are_rejected(suffix: str, wrong: Tensor, says: str) -> None:
    read(held())
    with pytest.raises(CheckpointError, match=rf"f\.safetensors: .*{says}"):
        read({**held(), suffix: wrong})


def test_ragged_rows_are_refused_where_each_must_be_reproducible() -> None:
    storage = read(held(50))
    assert "50 columns are not a multiple of 32" in storage.finalize(target_of(storage))
    with pytest.raises(Unsupported, match="remove --deterministic"):
        storage.finalize(target_of(storage, deterministic=True))
