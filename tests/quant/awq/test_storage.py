"""AWQ: plain torch equals the reference, every verb agrees, bytes come back, lies are refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from ostro import Storage, Stored, TensorInfo
from ostro.core.errors import CheckpointError, Unsupported
from ostro.core.nn import Dequantized
from ostro.plugins.conformance.formats import target_of
from ostro.quant import awq as plugin
from ostro.quant.awq import naive
from ostro.quant.awq.storage import Awq

(RECORD,) = plugin.ostro_quantizers()
GOLDEN = load_file(Path(__file__).parent / "golden.safetensors")
DENSE = GOLDEN.pop("dequantized")
N, K = 16, 64


def random(n: int = N, k: int = K, group: int = 32) -> dict[str, Tensor]:
    """Random words, which all are codes of some weight."""
    generator = torch.Generator().manual_seed(n + k)
    qweight, qzeros = (
        torch.randint(-(2**31), 2**31, (rows, n // 8), generator=generator).int()
        for rows in (k, k // group)
    )
    scales = torch.rand(k // group, n, generator=generator).half()
    return {"qweight": qweight, "qzeros": qzeros, "scales": scales}


def plain(tensors: Mapping[str, Tensor]) -> Tensor:
    return naive.dequantize(tensors["qweight"], tensors["qzeros"], tensors["scales"])


def infos(tensors: Mapping[str, Tensor]) -> dict[str, TensorInfo]:
    return {
        suffix: TensorInfo(
            name=f"w.{suffix}",
            shape=tuple(t.shape),
            format="I32" if t.dtype == torch.int32 else "F16",
            nbytes=t.nbytes,
            file="f.safetensors",
        )
        for suffix, t in tensors.items()
    }


def read(tensors: dict[str, Tensor], n: int = N, k: int = K, **settings: Any) -> Storage:
    return Awq.read(
        Stored(
            tensors=tensors,
            infos=infos(tensors),
            shape=(n, k),
            settings={"quant_method": "awq", **settings},
            device=torch.device("cpu"),
            dtype=torch.float32,
        )
    )


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(
        ours[name].dtype == t.dtype and ours[name].equal(t) and ours[name].is_contiguous()
        for name, t in theirs.items()
    )


def test_the_record_claims_awq_and_no_other() -> None:
    found = infos(GOLDEN)
    assert RECORD.claims(found, {"quant_method": "awq"})
    assert not RECORD.claims(found, {}) and not RECORD.claims(found, {"quant_method": "gptq"})
    assert not RECORD.claims({"weight": found["scales"]}, {"quant_method": "awq"}), "a float layer"


def test_it_reads_what_the_reference_reads() -> None:
    assert plain(GOLDEN).equal(DENSE)
    assert naive.pack(naive.unpack(GOLDEN["qweight"])).equal(GOLDEN["qweight"])
    assert naive.unpack(torch.tensor([0x76543210])).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


def test_it_says_what_the_reference_says_and_gives_the_bytes_back() -> None:
    storage = read(GOLDEN, version="GEMM", bits=4, group_size=32, zero_point=True)
    assert isinstance(storage, Awq) and storage.planes.group == 32
    assert storage.dequantize().equal(DENSE) and same(storage.save(), GOLDEN)
    whole = random(group=K)
    assert read(whole, q_group_size=-1, w_bit=4).dequantize().equal(plain(whole))


@pytest.mark.parametrize("finalized", [False, True])
def test_every_verb_says_what_the_plain_weight_says(finalized: bool) -> None:
    storage, x = read(GOLDEN), torch.randn(5, K)
    if finalized:
        assert "AWQ4 (4 bits, groups of 32)" in storage.finalize(target_of(storage, exact=True))
    torch.testing.assert_close(storage.matmul(x), x @ DENSE.t(), rtol=1e-4, atol=1e-3)
    ids = torch.tensor([3, 0, 3])
    assert storage.rows(ids).equal(DENSE[ids]) and storage.dequantize(1, 3).equal(DENSE[1:3])
    other = random(8)
    fused = Awq.fuse([storage, read(other, 8)])
    assert fused is not None and fused.dequantize().equal(torch.cat([DENSE, plain(other)]))
    assert read(fused.save(), N + 8).dequantize().equal(fused.dequantize())
    stacked = Awq.stack([storage, storage])
    assert stacked is not None
    rows = stacked.grouped(x, torch.tensor([0, 0, 1, 1, 1]))
    torch.testing.assert_close(rows, x @ DENSE.t(), rtol=1e-4, atol=1e-3)


def test_odd_rows_are_dequantized() -> None:
    held, x = random(16, 40, 40), torch.randn(3, 40)
    storage, dense = read(held, 16, 40), plain(held)
    assert isinstance(storage, Dequantized) and storage.dequantize().equal(dense)
    assert "40 columns are not a multiple of 32" in storage.finalize(target_of(storage))
    torch.testing.assert_close(storage.matmul(x), x @ dense.t())
    assert storage.dequantize(2, 5).equal(dense[2:5]) and same(storage.save(), held)
    assert storage.nbytes == 16 * 40 + 16 * 3
    with pytest.raises(Unsupported, match="remove --deterministic"):
        storage.finalize(target_of(storage, deterministic=True))


LIES = [
    ("qweight", torch.zeros(K, 3).int(), r"has shape \[64, 3\] and type torch\.int32, expected"),
    ("qweight", torch.zeros(N, 8).int(), r"has shape \[16, 8\]"),
    ("qweight", torch.zeros(K, 2).half(), r"and type torch\.float16, expected"),
    (
        "scales",
        torch.zeros(3, N).half(),
        r"expected floats \[groups, 16\] of groups that divide 64",
    ),
    ("scales", torch.zeros(0, N).half(), r"expected floats \[groups, 16\]"),
    ("scales", torch.zeros(2, 8).half(), r"expected floats \[groups, 16\]"),
    ("scales", torch.zeros(2, N).int(), r"expected floats \[groups, 16\]"),
    ("qzeros", torch.zeros(2, 3).int(), r"expected int32 \[2, 16 / 8\]"),
    ("g_idx", torch.zeros(K).int(), "comes with g_idx, which are not part of AWQ"),
]


@pytest.mark.parametrize(("suffix", "wrong", "says"), LIES)
def test_malformed_tensors_are_rejected(suffix: str, wrong: Tensor, says: str) -> None:
    read(GOLDEN)
    with pytest.raises(CheckpointError, match=rf"f\.safetensors: w\..*{says}"):
        read({**GOLDEN, suffix: wrong})


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"version": "gemv"}, "version 'gemv', which is not supported"),
        ({"version": "marlin"}, "version 'marlin'"),
        ({"checkpoint_format": "gemv_fast"}, "version 'gemv_fast'"),
        ({"bits": 17}, "config.json has 17 bits"),
        ({"group_size": 0}, "2 groups for 64 columns, config.json has group_size=0"),
        ({"group_size": 64}, "has group_size=64"),
        ({"group_size": -1}, "has group_size=-1"),
    ],
)
def test_other_versions_and_inconsistent_configs_are_rejected(
    settings: dict[str, Any], says: str
) -> None:
    read(GOLDEN, version="gemm", bits=4, group_size=32)
    with pytest.raises(CheckpointError, match=says):
        read(GOLDEN, **settings)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"w\.qweight is missing qzeros and scales"):
        read({"qweight": GOLDEN["qweight"]})
