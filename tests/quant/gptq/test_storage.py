"""Gptq: what was read comes back, every verb agrees, and lies are refused."""

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
from ostro.quant import gptq as plugin
from ostro.quant.gptq import naive
from ostro.quant.gptq.storage import Gptq

(RECORD,) = plugin.ostro_quantizers()
GOLDEN = load_file(Path(__file__).parent / "golden.safetensors")
CASES = sorted(name.removesuffix(".dequantized") for name in GOLDEN if "dequantized" in name)
N, K, GROUP = 24, 128, 32


def tensors(
    bits: int = 4, n: int = N, k: int = K, *, act: bool = False, seed: int = 0
) -> dict[str, Tensor]:
    """A weight of random codes, with zeros of 0 among its zeros."""
    generator = torch.Generator().manual_seed(bits + n + seed)
    codes = torch.randint(0, 2**bits, (n, k), generator=generator, dtype=torch.uint8)
    groups = torch.arange(k, dtype=torch.int32) // GROUP
    zeros = torch.randint(0, 2**bits, (-(-k // GROUP), n), generator=generator, dtype=torch.uint8)
    zeros[0, ::3] = 0
    order = torch.randperm(k, generator=torch.Generator().manual_seed(0))
    return {
        "qweight": naive.pack(codes, bits).t().contiguous(),
        "qzeros": naive.pack_zeros(zeros, bits, zeros_minus_one=True),
        "scales": torch.rand(zeros.shape, generator=generator).half(),
        "g_idx": groups[order] if act else groups,
    }


def infos(tensors: Mapping[str, Tensor]) -> dict[str, TensorInfo]:
    return {
        suffix: TensorInfo(
            name=f"w.{suffix}",
            shape=tuple(t.shape),
            format={torch.int32: "I32", torch.float16: "F16"}.get(t.dtype, "F32"),
            nbytes=t.nbytes,
            file="f.safetensors",
        )
        for suffix, t in tensors.items()
    }


def read(tensors: dict[str, Tensor], n: int = N, k: int = K, **settings: Any) -> Storage:
    return Gptq.read(
        Stored(
            tensors=tensors,
            infos=infos(tensors),
            shape=(n, k),
            settings={"quant_method": "gptq", **settings},
            device=torch.device("cpu"),
            dtype=torch.float32,
        )
    )


def plain(tensors: dict[str, Tensor], bits: int) -> Tensor:
    q, z, s, g = (tensors[name] for name in ("qweight", "qzeros", "scales", "g_idx"))
    return naive.dequantize(q, z, s, g, bits, zeros_minus_one=True)


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(
        ours[name].dtype == t.dtype and ours[name].equal(t) and ours[name].is_contiguous()
        for name, t in theirs.items()
    )


def test_the_record_claims_gptq_and_no_other() -> None:
    found = infos(tensors())
    weight = {"weight": found["scales"]}
    assert RECORD.claims(found, {"quant_method": "gptq"}) and RECORD.claims(found, {})
    assert not RECORD.claims(found, {"quant_method": "awq"})
    assert not RECORD.claims({s: i for s, i in found.items() if s != "g_idx"}, {})
    assert not RECORD.claims(weight, {"quant_method": "gptq"}), "a float layer"
    assert RECORD.claims({"B": found["qweight"], "s": found["scales"]}, {"quant_method": "gptq"})


@pytest.mark.parametrize("case", CASES)
def test_it_says_what_gptqmodel_says_and_gives_the_bytes_back(case: str) -> None:
    held = {name.removeprefix(f"{case}."): t for name, t in GOLDEN.items() if case in name}
    theirs = held.pop("dequantized")
    bits, format, order = case.split(".")
    storage = read(held, *theirs.shape, bits=int(bits), checkpoint_format=format)
    assert isinstance(storage, Gptq) and storage.format == f"GPTQ{bits}"
    assert storage.planes.group == (16 if order == "uneven" else 32)
    assert (storage.order is None) is (order != "act")
    assert storage.dequantize().equal(theirs)
    assert same(storage.save(), held)


@pytest.mark.parametrize("act", [False, True])
@pytest.mark.parametrize("bits", naive.BITS)
def test_every_verb_says_what_the_plain_weight_says(bits: int, act: bool) -> None:
    held, x = tensors(bits, act=act), torch.randn(5, K)
    storage, dense = read(held), plain(held, bits)
    assert isinstance(storage, Gptq)
    assert f"GPTQ{bits} ({bits} bits, groups of 32)" in storage.finalize(
        target_of(storage, exact=True)
    )
    torch.testing.assert_close(storage.matmul(x), x @ dense.t(), rtol=1e-4, atol=1e-3)
    ids = torch.tensor([3, 0, 3])
    assert storage.rows(ids).equal(dense[ids]) and storage.dequantize(1, 3).equal(dense[1:3])
    other = tensors(bits, 8, act=act)
    fused = Gptq.fuse([storage, read(other, 8)])
    assert isinstance(fused, Gptq)
    assert fused.dequantize().equal(torch.cat([dense, plain(other, bits)]))
    assert read(fused.save(), N + 8).dequantize().equal(fused.dequantize())
    stacked = Gptq.stack([storage, storage])
    assert stacked is not None
    rows = stacked.grouped(x, torch.tensor([0, 0, 1, 1, 1]))
    torch.testing.assert_close(rows, x @ dense.t(), rtol=1e-4, atol=1e-3)


def test_parts_of_different_column_orders_are_not_fused() -> None:
    assert Gptq.fuse([read(tensors()), read(tensors(act=True))]) is None


def test_an_index_that_sorts_nothing_is_no_order() -> None:
    storage = read(tensors(), desc_act=True, static_groups=True)
    assert isinstance(storage, Gptq) and storage.order is None


@pytest.mark.parametrize("said", [32, None])
def test_without_an_index_groups_follow_each_other(said: int | None) -> None:
    held = tensors()
    dense = plain(held, 4)
    del held["g_idx"]
    storage = read(held, group_size=said)
    assert storage.dequantize().equal(dense) and same(storage.save(), held)


def test_a_whole_row_is_a_group() -> None:
    held = {name: t[:1] for name, t in tensors().items()} | {"qweight": tensors()["qweight"]}
    held["g_idx"] = torch.zeros(K, dtype=torch.int32)
    dense = plain(held, 4)
    del held["g_idx"]
    storage = read(held, group_size=-1)
    assert storage.dequantize().equal(dense) and same(storage.save(), held)


def test_layers_may_differ_from_what_the_config_says() -> None:
    held = tensors(8)
    dynamic = {"+:.*down_proj.*": {"bits": 8}}
    assert read(held, bits=4, dynamic=dynamic).dequantize().equal(plain(held, 8))
    with pytest.raises(CheckpointError, match=r"shape of 8 bits, config\.json has bits=4"):
        read(held, bits=4)


def test_biases_of_zeros_go_back_and_others_are_refused() -> None:
    held = tensors() | {"bias": torch.zeros(N).half()}
    assert same(read(held).save(), held)
    with pytest.raises(CheckpointError, match=r"w\.bias is a bias, which"):
        read(held | {"bias": torch.ones(N).half()})


def test_odd_rows_are_dequantized() -> None:
    held, x = tensors(4, 12, 40), torch.randn(3, 40)
    storage, dense = read(held, 12, 40), plain(held, 4)
    assert isinstance(storage, Dequantized) and storage.dequantize().equal(dense)
    assert "40 columns are not a multiple of 32" in storage.finalize(target_of(storage))
    torch.testing.assert_close(storage.matmul(x), x @ dense.t())
    assert storage.dequantize(2, 5).equal(dense[2:5]) and same(storage.save(), held)
    assert storage.nbytes == 12 * 40 + 2 * 12 * 3 + 40 * 4
    with pytest.raises(Unsupported, match="remove --deterministic"):
        storage.finalize(target_of(storage, deterministic=True))


LIES = [
    (
        "qweight",
        torch.zeros(17, N).int(),
        r"has shape \[17, 24\], expected .* weights \[24, 128\] of b",
    ),
    (
        "qweight",
        torch.zeros(16, N + 8).int(),
        r"has shape \[16, 32\], expected .* weights \[24, 128\]",
    ),
    ("qweight", torch.zeros(24, N).int(), r"b one of 2, 3, 4, 8"),
    ("qweight", torch.zeros(16, N).long(), r"packed in torch\.int64, expected torch\.int32"),
    (
        "qzeros",
        torch.zeros(4, 4).int(),
        r"has shape \[4, 4\] and type torch\.int32, expected .* for 4 groups",
    ),
    ("qzeros", torch.zeros(4, 3).half(), r"and type torch\.float16, expected .* for 4 groups"),
    ("scales", torch.zeros(4, 23).half(), r"expected floats \[groups, 24\]"),
    ("scales", torch.zeros(5, N).half(), r"qzeros has shape .* for 5 groups"),
    ("scales", torch.zeros(4, N).int(), r"expected floats \[groups, 24\]"),
    ("g_idx", torch.full((K,), 4).int(), r"expected integers \[128\] in 0\.\.3"),
    ("g_idx", torch.full((K,), -1).int(), r"expected integers \[128\] in 0\.\.3"),
    ("g_idx", torch.zeros(K - 1).int(), r"has shape \[127\]"),
    ("g_idx", torch.zeros(K).int(), "leaves 3 of 4 groups empty"),
    ("g_idx", torch.zeros(K), r"and type torch\.float32, expected integers"),
    ("workspace", torch.zeros(4).int(), "has extra tensors workspace, which are not part of GPTQ"),
]


@pytest.mark.parametrize(("suffix", "wrong", "says"), LIES)
def test_malformed_tensors_are_rejected(suffix: str, wrong: Tensor, says: str) -> None:
    held = tensors()
    read(held)
    with pytest.raises(CheckpointError, match=rf"f\.safetensors: w\..*{says}"):
        read({**held, suffix: wrong})


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"bits": 17}, "has bits=17"),
        ({"group_size": 0}, "4 groups for 128 columns, config.json has group_size=0"),
        ({"group_size": 64}, "has group_size=64"),
        ({"group_size": "32"}, "has group_size='32'"),
        ({"desc_act": True}, "is missing g_idx, but config.json has desc_act"),
        ({"checkpoint_format": "marlin"}, "format 'marlin', which is not supported"),
        ({"is_marlin_format": True}, "format 'marlin'"),
        ({"format": "gptq_p"}, "format 'gptq_p'"),
    ],
)
def test_inconsistent_configs_are_rejected(settings: dict[str, Any], says: str) -> None:
    held = tensors()
    del held["g_idx"]
    read(held, group_size=32)
    with pytest.raises(CheckpointError, match=says):
        read(held, **{"group_size": 32, **settings})


def test_what_is_missing_is_named() -> None:
    held = tensors()
    del held["qzeros"]
    with pytest.raises(CheckpointError, match="is missing qzeros"):
        read(held)
    with pytest.raises(CheckpointError, match="format 'marlin'"):
        read({"B": held["qweight"], "s": held["scales"]})


def test_the_last_group_of_a_file_without_group_indices_may_be_smaller() -> None:
    held = tensors(k=112)
    expected = plain(held, 4)
    del held["g_idx"]
    storage = read(held, k=112, bits=4, group_size=GROUP)
    assert storage.dequantize().equal(expected)
    with pytest.raises(CheckpointError, match="4 groups for 112 columns"):
        read(held, k=112, bits=4, group_size=2 * GROUP)
