"""Bits4: what bitsandbytes saved comes back, verbs agree, and lies are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
from ostro.quant.bnb.bits4 import Bits4

(RECORD, _) = plugin.ostro_quantizers()
GOLDEN = load_file(Path(__file__).parent / "golden.safetensors")
CASES = sorted(name.removesuffix(".weight") for name in GOLDEN if name.endswith(".weight"))
CASES.remove("int8")
NESTED, WHOLE = "nf4.64.20x128.float32.nested", "nf4.64.6x128.float32"


def held(case: str) -> dict[str, Tensor]:
    """What bitsandbytes saved of a case."""
    mine = {name: t for name, t in GOLDEN.items() if name.startswith(f"{case}.weight")}
    return {name.removeprefix(f"{case}."): t for name, t in mine.items()}


def shape(case: str) -> tuple[int, int]:
    n, _, k = case.split(".")[2].partition("x")
    return int(n), int(k)


def infos(tensors: dict[str, Tensor]) -> dict[str, TensorInfo]:
    return {
        suffix: TensorInfo(
            name=f"w.{suffix}",
            shape=tuple(t.shape),
            format="U8" if t.dtype == torch.uint8 else "F32",
            nbytes=t.nbytes,
            file="f.safetensors",
        )
        for suffix, t in tensors.items()
    }


def read(tensors: dict[str, Tensor], size: tuple[int, int]) -> Storage:
    return Bits4.read(
        Stored(
            tensors=tensors,
            infos=infos(tensors),
            shape=size,
            device=torch.device("cpu"),
            dtype=torch.float32,
        )
    )


def state(tensors: dict[str, Tensor], **changed: Any) -> dict[str, Tensor]:
    """The tensors with other words in their state."""
    (name,) = (name for name in tensors if name.startswith(plugin.STATE))
    said = json.loads(bytes(tensors[name].tolist())) | changed
    return {**tensors, name: torch.tensor(list(json.dumps(said).encode()), dtype=torch.uint8)}


def test_the_record_claims_both_forms_and_no_other() -> None:
    for case in (NESTED, WHOLE):
        found = infos(held(case))
        assert RECORD.claims(found, {})
        for suffix in found:
            assert not RECORD.claims({s: info for s, info in found.items() if s != suffix}, {})
        assert not RECORD.claims({**found, "SCB": found["weight"]}, {})


@pytest.mark.parametrize("case", CASES)
def test_it_says_what_bitsandbytes_says_and_gives_the_bytes_back(case: str) -> None:
    tensors, (n, k) = held(case), shape(case)
    storage, theirs = read(tensors, (n, k)), GOLDEN[f"{case}.dequantized"]
    assert (
        type(storage) is (Dequantized if k % 32 else Bits4) and storage.format == case[:3].upper()
    )
    assert storage.dequantize().to(theirs.dtype).equal(theirs)
    assert storage.dequantize(1, 3).equal(storage.dequantize()[1:3])
    saved = storage.save()
    assert saved.keys() == tensors.keys()
    assert all(saved[s].dtype == t.dtype and saved[s].equal(t) for s, t in tensors.items())


def test_codes_may_be_stored_as_floats() -> None:
    tensors = held(WHOLE)
    tensors["weight"] = tensors["weight"].view(-1, 2).view(torch.bfloat16)
    storage = read(tensors, (6, 128))
    assert storage.dequantize().equal(GOLDEN[f"{WHOLE}.dequantized"])
    weight = storage.save()["weight"]
    assert weight.dtype == torch.bfloat16
    assert weight.view(torch.uint8).equal(tensors["weight"].view(torch.uint8))


@pytest.mark.parametrize("finalized", [False, True])
@pytest.mark.parametrize("case", [WHOLE, "fp4.128.6x96.float32.nested", "nf4.64.5x50.float32"])
def test_every_verb_says_what_the_plain_weight_says(case: str, finalized: bool) -> None:
    n, k = shape(case)
    storage, x = read(held(case), (n, k)), torch.randn(5, k)
    plain = storage.dequantize()
    if finalized:
        assert storage.finalize(target_of(storage, exact=True)).startswith(storage.format)
    torch.testing.assert_close(storage.matmul(x), x @ plain.t(), rtol=1e-4, atol=1e-4)
    ids = torch.tensor([3, 0, 3])
    assert storage.rows(ids).equal(plain[ids]) and storage.nbytes >= n * k // 2


def test_it_is_fused_and_stacked_and_saved_then() -> None:
    storage, other = read(held(WHOLE), (6, 128)), read(held(NESTED), (20, 128))
    plain = storage.dequantize()
    fused = Bits4.fuse([storage, other])
    assert fused is not None
    assert fused.dequantize().equal(torch.cat([plain, other.dequantize()]))
    assert RECORD.claims(infos(fused.save()), {})
    assert read(fused.save(), (26, 128)).dequantize().equal(fused.dequantize())
    stacked, x = Bits4.stack([storage, storage]), torch.randn(3, 128)
    assert stacked is not None
    y = stacked.grouped(x, torch.tensor([0, 1, 1]))
    torch.testing.assert_close(y, x @ plain.t(), rtol=1e-4, atol=1e-4)
    assert Bits4.fuse([storage, read(held("fp4.64.6x128.float32"), (6, 128))]) is None


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"blocksize": 0}, "has blocksize=0, expected a positive"),
        ({"blocksize": "64"}, "has blocksize='64'"),
        (
            {"blocksize": 32},
            r"w\.weight\.absmax has shape \[40\] and type torch\.uint8, expected uint8 \[80\]",
        ),
        ({"quant_type": "fp4"}, "describes 'fp4' of"),
        ({"shape": [20, 64]}, r"of shape \[20, 64\], expected 'nf4' of shape \[20, 1"),
        ({"nested_blocksize": 8}, r"nested_absmax has shape \[1\] .* expected 5 floats"),
        ({"nested_blocksize": None}, "has nested_blocksize=None"),
        ({"nested_offset": "a"}, "has nested_offset='a', expected a number"),
    ],
)
def test_inconsistent_states_are_rejected(changed: dict[str, Any], says: str) -> None:
    tensors = held(NESTED)
    read(state(tensors), (20, 128))
    with pytest.raises(CheckpointError, match=says):
        read(state(tensors, **changed), (20, 128))


@pytest.mark.parametrize("raw", [b"[1]", b"{", b"\xff", b"[" * 9999], ids=str)
def test_states_that_are_no_json_object_are_refused(raw: bytes) -> None:
    tensors = held(WHOLE)
    tensors[f"{plugin.STATE}nf4"] = torch.tensor(list(raw), dtype=torch.uint8)
    with pytest.raises(CheckpointError, match="is not a JSON object"):
        read(tensors, (6, 128))


@pytest.mark.parametrize(
    ("suffix", "wrong", "says"),
    [
        ("weight", torch.zeros(383, 1, dtype=torch.uint8), "has 383 bytes, expected 384 for 768"),
        ("weight.quant_map", torch.zeros(15), r"shape \[15\] and type torch\.float32, expected 16"),
        ("weight.quant_map", torch.full((16,), torch.inf), "contains NaN or Inf"),
        ("weight.absmax", torch.zeros(12, dtype=torch.int32), "int32, expected 12 floats"),
        ("weight.absmax", torch.full((12,), torch.nan), "contains NaN or Inf"),
    ],
)
def test_inconsistent_tensors_are_rejected(suffix: str, wrong: Tensor, says: str) -> None:
    tensors = held(WHOLE)
    read(tensors, (6, 128))
    with pytest.raises(CheckpointError, match=says):
        read({**tensors, suffix: wrong}, (6, 128))


def test_ragged_rows_are_refused_where_each_must_be_reproducible() -> None:
    storage = read(held("nf4.64.5x50.float32"), (5, 50))
    assert "50 columns are not a multiple of 32" in storage.finalize(target_of(storage))
    with pytest.raises(Unsupported, match="remove --deterministic"):
        storage.finalize(target_of(storage, deterministic=True))
