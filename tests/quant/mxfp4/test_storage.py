"""Mxfp4: every verb against the dequantized weight, and the bytes come back as they were."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from ostro.core.errors import CheckpointError
from ostro.core.nn.storage import Storage, Stored
from ostro.core.records import TensorInfo
from ostro.plugins.conformance.formats import target_of
from ostro.quant import mxfp4 as plugin
from ostro.quant.mxfp4 import naive
from ostro.quant.mxfp4.storage import Mxfp4

N, K = 40, 96
CPU = torch.device("cpu")


def read(gguf: bool, n: int = N, k: int = K, dtype: torch.dtype = torch.float32) -> Mxfp4:
    """A storage of random bytes, as a loader reads it from the hub's tensors or a GGUF file's."""
    generator = torch.Generator().manual_seed(n + k + gguf)
    scales = torch.randint(120, 130, (n, k // 32), generator=generator, dtype=torch.uint8)
    blocks = torch.randint(0, 256, (n, k // 32, 16), generator=generator, dtype=torch.uint8)
    tensors = {"blocks": blocks, "scales": scales}
    if gguf:
        tensors = {"weight": torch.cat((scales[..., None], blocks), -1).flatten(-2)}
    return Mxfp4.read(stored(tensors, dtype))


def stored(tensors: dict[str, Tensor], dtype: torch.dtype) -> Stored:
    kinds = {"weight": "MXFP4"}
    infos = {
        suffix: TensorInfo(
            name=f"w.{suffix}", shape=t.shape, format=kinds.get(suffix, "U8"), nbytes=t.nbytes
        )
        for suffix, t in tensors.items()
    }
    return Stored(tensors=tensors, infos=infos, shape=(), device=CPU, dtype=dtype)


@pytest.fixture(params=[False, True], ids=["hub", "gguf"])
def gguf(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=["as read", "finalized", "alone"])
def finalize(request: pytest.FixtureRequest) -> Any:
    """Do to a storage what loading does, or nothing."""

    def apply(storage: Storage) -> None:
        if request.param != "as read":
            storage.finalize(target_of(storage, deterministic=request.param == "alone"))

    return apply


def test_the_record_claims_both_forms_and_no_other() -> None:
    (record,) = plugin.ostro_quantizers()

    def claimed(**formats: str) -> bool:
        found = {
            suffix: TensorInfo(name="w", shape=(1, 32), format=format, nbytes=0)
            for suffix, format in formats.items()
        }
        return record.claims(found, {})

    assert claimed(blocks="U8", scales="U8") and claimed(weight="MXFP4")
    assert not claimed(weight="U8") and not claimed(blocks="U8")
    assert not claimed(blocks="U8", scales="F16") and not claimed(weight="MXFP4", scales="U8")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dequantizes_any_rows(finalize: Any, gguf: bool, dtype: torch.dtype) -> None:
    storage = read(gguf, dtype=dtype)
    finalize(storage)
    truth = naive.dequantize(storage.q, storage.e, dtype)
    assert storage.shape == (N, K) and storage.dtype == dtype
    for start, stop in ((0, None), (3, 17), (N - 1, N), (5, 5)):
        assert torch.equal(storage.dequantize(start, stop), truth[start:stop])
    ids = torch.tensor([7, 0, 7, N - 1])
    assert torch.equal(storage.rows(ids), truth[ids])


@pytest.mark.parametrize("shape", [(1, K), (70, K), (2, 3, K), (0, K), (K,)], ids=str)
def test_multiplies(finalize: Any, shape: tuple[int, ...]) -> None:
    storage = read(False)
    finalize(storage)
    x = torch.randn(shape)
    expected = x @ storage.dequantize().t()
    torch.testing.assert_close(storage.matmul(x), expected, rtol=1e-4, atol=1e-4)


def test_the_bytes_come_back(finalize: Any, gguf: bool) -> None:
    storage = read(gguf)
    finalize(storage)
    saved = storage.save()
    again = Mxfp4.read(stored(saved, torch.float32))
    assert saved.keys() == ({"weight"} if gguf else {"blocks", "scales"})
    assert torch.equal(again.q, storage.q) and torch.equal(again.e, storage.e)
    assert sum(t.nbytes for t in saved.values()) == storage.nbytes == N * K // 32 * 17


@pytest.mark.parametrize("rows", [5, 60])
def test_experts_are_fused_and_stacked(finalize: Any, gguf: bool, rows: int) -> None:
    parts = [[read(gguf, n) for n in (N + e, 8 - e)] for e in range(3)]
    fused = [storage for pair in parts if (storage := Mxfp4.fuse(pair))]
    stacked = Mxfp4.stack(fused)
    assert stacked is not None and stacked.shape == (3, N + 8, K)
    finalize(stacked)
    truth = torch.stack([torch.cat([part.dequantize() for part in pair]) for pair in parts])
    assert torch.equal(stacked.dequantize(), truth.flatten(0, 1))
    x, chosen = torch.randn(rows, K), torch.arange(rows) * 2 // rows * 2
    expected = torch.einsum("tk,tnk->tn", x, truth[chosen])
    torch.testing.assert_close(stacked.grouped(x, chosen), expected, rtol=1e-4, atol=1e-4)


def test_others_are_neither_fused_nor_stacked() -> None:
    one, others = read(False), (read(True), read(False, dtype=torch.bfloat16))
    for other in others:
        assert Mxfp4.fuse([one, other]) is None and Mxfp4.stack([one, other]) is None


def test_blocks_without_their_scales_are_refused() -> None:
    tensors = {
        "blocks": torch.zeros(4, 3, 16, dtype=torch.uint8),
        "scales": torch.zeros(4, 2, dtype=torch.uint8),
    }
    with pytest.raises(CheckpointError, match=r"w\.blocks has blocks of shape \[4, 3, 16\]"):
        Mxfp4.read(stored(tensors, torch.float32))


@pytest.mark.parametrize("suffix", ["scales", "weight"])
def test_exponents_that_no_model_has_are_refused(suffix: str) -> None:
    tensors = read(suffix == "weight").save()
    tensors[suffix].view(-1)[0] = 240  # the first exponent in both forms
    Mxfp4.read(stored(tensors, torch.float32))
    tensors[suffix].view(-1)[0] = 255
    with pytest.raises(CheckpointError, match=r"w\.\w+ has the exponent 255, weights of 2\*\*128"):
        Mxfp4.read(stored(tensors, torch.float32))


@pytest.mark.parametrize("deterministic", [False, True])
def test_without_a_compiler_naive_remains(
    deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ostro.quant.mxfp4.native", None)
    stacked = Mxfp4.stack([read(False), read(False)])
    assert stacked is not None
    assert "grouped by naive (" in stacked.finalize(target_of(stacked, deterministic=deterministic))
    x, chosen = torch.randn(2, K), torch.tensor([0, 1])
    expected = x @ read(False).dequantize().t()
    torch.testing.assert_close(stacked.grouped(x, chosen), expected, rtol=1e-4, atol=1e-4)
