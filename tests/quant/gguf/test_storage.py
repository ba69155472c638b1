"""Packed: every verb against the dequantized weight, and the bytes come back as they were."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from ostro.core.errors import Unsupported
from ostro.core.load.ggml import BY_NAME
from ostro.core.nn import Embedding, Linear
from ostro.core.nn.storage import Storage, Stored
from ostro.core.records import TensorInfo
from ostro.core.step import ROWS
from ostro.quant import gguf as plugin
from ostro.quant.dense.storage import Dense
from ostro.quant.gguf import naive
from ostro.quant.gguf.storage import Packed

FLOATS = {"F32", "F16", "BF16"}
N, K = 40, 96


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def packed(
    *shape: int, dtype: torch.dtype = torch.float32, format: str = "Q8_0", seed: int = 0
) -> tuple[Packed, Tensor]:
    """A storage of random weights as a loader reads it, and gguf's idea of them, float32."""
    data = gguf.quantize(weights(*shape, seed=seed), GGMLQuantizationType[format])
    info = TensorInfo(name="w", shape=shape, format=format, nbytes=data.nbytes)
    device = torch.device("cpu")
    raw = torch.from_numpy(data)
    stored = Stored(
        tensors={"weight": raw}, infos={"weight": info}, shape=shape, device=device, dtype=dtype
    )
    storage = Packed.read(stored)
    return storage, torch.from_numpy(gguf.dequantize(data, GGMLQuantizationType[format]))


@pytest.fixture(params=["as read", "settled", "alone"])
def settle(request: pytest.FixtureRequest) -> Any:
    """Do to a storage what loading does, or nothing."""

    def apply(storage: Storage) -> None:
        if request.param != "as read":
            storage.settle(deterministic=request.param == "alone")

    return apply


def test_the_record_claims_what_can_be_unpacked() -> None:
    assert set(naive.FORMATS) - FLOATS == plugin.FORMATS
    (record,) = plugin.ostro_quantizers()
    for format in BY_NAME:
        info = TensorInfo(name="w", shape=(1, 32), format=format, nbytes=0)
        assert record.claims({"weight": info}, {}) == (format in plugin.FORMATS)
        assert not record.claims({"weight": info, "scales": info}, {})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dequantizes_any_rows_and_rounds_once(settle: Any, dtype: torch.dtype) -> None:
    storage, truth = packed(N, K, dtype=dtype)
    settle(storage)
    assert storage.shape == (N, K) and storage.format == "Q8_0" and storage.dtype == dtype
    for start, stop in ((0, None), (3, 17), (N - 1, N), (5, 5)):
        assert torch.equal(storage.dequantize(start, stop), truth[start:stop].to(dtype))


@pytest.mark.parametrize(
    "shape", [(1, K), (2, K), (3, K), (70, K), (2, 3, K), (0, K), (K,)], ids=str
)
def test_multiplies(settle: Any, shape: tuple[int, ...]) -> None:
    storage, truth = packed(N, K)
    settle(storage)
    x = torch.from_numpy(weights(*shape))
    torch.testing.assert_close(storage.matmul(x), x @ truth.t())


def test_multiplies_by_heads(settle: Any) -> None:
    storage, truth = packed(N, K)
    settle(storage)
    x = torch.from_numpy(weights(3, 4, N // 4))
    expected = torch.einsum("thn,hnk->thk", x, truth.view(4, N // 4, K))
    torch.testing.assert_close(storage.matmul_t(x), expected)


def test_reads_rows_by_id(settle: Any) -> None:
    storage, truth = packed(N, K, dtype=torch.bfloat16)
    settle(storage)
    ids = torch.tensor([7, 0, 7, N - 1])
    assert torch.equal(storage.rows(ids), truth[ids].bfloat16())


def test_saves_the_bytes_it_read(settle: Any) -> None:
    data = torch.randint(0, 256, (N, 3 * 34), dtype=torch.uint8)
    storage = Packed("Q8_0", data, torch.float32)
    settle(storage)
    assert storage.save().keys() == {"weight"}
    assert torch.equal(storage.save()["weight"], data), "NaN scales included"
    assert storage.nbytes == data.nbytes


def test_fuses_parts_of_one_format(settle: Any) -> None:
    parts = [packed(n, K, seed=n) for n in (40, 8, 16)]
    fused = Packed.fuse([storage for storage, _ in parts])
    assert fused is not None
    settle(fused)
    assert torch.equal(fused.dequantize(), torch.cat([truth for _, truth in parts]))


def test_does_not_fuse_with_others() -> None:
    one, other = packed(N, K)[0], packed(N, K, dtype=torch.bfloat16)[0]
    dense = Dense(torch.zeros(N, K))
    assert Packed.fuse([one, other]) is None
    assert Packed.fuse([one, dense]) is None and Dense.fuse([dense, one]) is None


def test_slices_rows_and_whole_blocks_of_columns(settle: Any) -> None:
    storage, truth = packed(N, K)
    settle(storage)
    assert torch.equal(storage.slice(0, 8, 24).dequantize(), truth[8:24])
    assert torch.equal(storage.slice(1, 32, 96).dequantize(), truth[:, 32:96])
    with pytest.raises(Unsupported, match=r"cannot be cut at 16\.\.64"):
        storage.slice(1, 16, 64)


def test_stacks_experts(settle: Any) -> None:
    experts = [packed(N, K, seed=seed) for seed in range(3)]
    stacked = Packed.stack([storage for storage, _ in experts])
    assert stacked is not None
    settle(stacked)
    truth = torch.stack([truth for _, truth in experts])
    x, chosen = torch.from_numpy(weights(5, K)), torch.tensor([0, 0, 2, 2, 2])
    expected = torch.einsum("tk,tnk->tn", x, truth[chosen])
    assert stacked.shape == (3, N, K)
    torch.testing.assert_close(stacked.grouped(x, chosen), expected)


def test_a_linear_of_mixed_formats_keeps_its_parts_apart() -> None:
    packed_part, truth = packed(N, K)
    linear = Linear(K, {"a": N, "b": 8})
    linear.storages = {"a": packed_part, "b": Dense(torch.ones(8, K))}
    linear.settle()
    x = torch.from_numpy(weights(3, K))
    expected = torch.cat((x @ truth.t(), x.sum(-1, keepdim=True).expand(3, 8)), -1)
    torch.testing.assert_close(linear(x, ROWS), expected)


def test_a_tied_embedding_is_settled_twice() -> None:
    embedding = Embedding(N, K)
    embedding.storage, truth = packed(N, K)
    embedding.settle()
    embedding.settle()
    assert torch.equal(embedding(torch.tensor([3]), ROWS), truth[3:4])


def test_each_row_alone_does_not_depend_on_the_batch() -> None:
    storage, _ = packed(256, 512, dtype=torch.bfloat16)
    assert "each row alone" in storage.settle(deterministic=True)
    x = torch.from_numpy(weights(9, 512)).bfloat16()
    together = storage.matmul(x)
    assert all(torch.equal(storage.matmul(x[i : i + 1])[0], together[i]) for i in range(9))
