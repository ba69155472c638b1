"""Fp8: the bytes come back, every verb agrees, and lies are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ostro.core.errors import CheckpointError, ConfigError, Unsupported
from ostro.core.nn import Dequantized
from ostro.core.nn.storage import Storage, Stored
from ostro.core.records import TensorInfo
from ostro.plugins.conformance.formats import target_of
from ostro.quant import fp8 as plugin
from ostro.quant.fp8.storage import Fp8

N, K = 130, 160
(RECORD,) = plugin.ostro_quantizers()
NAMES = {torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.int8: "I8"}
SCALES: dict[str, tuple[int, ...]] = {
    "tensor": (),
    "one": (1,),
    "rows": (N, 1),
    "flat rows": (N,),
    "blocks": (2, 2),
}
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def tensors(
    shape: tuple[int, ...],
    suffix: str = "weight_scale",
    n: int = N,
    k: int = K,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(n + k)
    weight = torch.randn(n, k, generator=generator).to(dtype)
    return {"weight": weight, suffix: torch.rand(shape, generator=generator) + 0.5}


def uqff() -> dict[str, Tensor]:
    held = tensors((), "weight.dequant_w_scale")
    said = {"format": (3, torch.uint8), "dtype": (5, torch.uint32)}
    made = {f"weight.{name}": torch.tensor(v).to(dtype) for name, (v, dtype) in said.items()}
    scale = held["weight.dequant_w_scale"]
    return held | made | {"weight.dequant_x_scale": scale, "weight.quant_scale": 1 / scale}


def infos(tensors: dict[str, Tensor]) -> dict[str, TensorInfo]:
    return {
        suffix: TensorInfo(
            name=f"w.{suffix}",
            shape=tuple(t.shape),
            format=NAMES.get(t.dtype, "F32"),
            nbytes=t.nbytes,
            file="f.safetensors",
        )
        for suffix, t in tensors.items()
    }


def read(tensors: dict[str, Tensor], dtype: torch.dtype = torch.float32, **said: Any) -> Storage:
    return Fp8.read(
        Stored(
            tensors=tensors,
            infos=infos(tensors),
            shape=tuple(tensors["weight"].shape),
            settings=said or BLOCKS,
            device=torch.device("cpu"),
            dtype=dtype,
        )
    )


def test_the_record_claims_what_has_one_scale() -> None:
    one, inverse = infos(tensors(())), infos(tensors((), "weight_scale_inv"))
    assert RECORD.claims(one, {}) and RECORD.claims(inverse, BLOCKS)
    assert RECORD.claims({**one, "input_scale": one["weight_scale"]}, {"quant_method": "modelopt"})
    assert RECORD.claims(infos(uqff()), {})
    assert not RECORD.claims(one, {"quant_method": "compressed-tensors"})
    assert not RECORD.claims({**one, **inverse}, {}) and not RECORD.claims({}, {})
    assert not RECORD.claims({**one, "weight_zero_point": one["weight_scale"]}, {})
    assert not RECORD.claims({"weight": one["weight"]}, {})
    eight = infos({**tensors(()), "weight": torch.zeros(4, 32, dtype=torch.int8)})
    assert not RECORD.claims(eight, {})


@pytest.mark.parametrize("k", [K, 150], ids=["planes", "ragged"])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("kind", SCALES)
def test_it_says_what_the_tensors_say(kind: str, dtype: torch.dtype, k: int) -> None:
    held = tensors(SCALES[kind], "weight_scale_inv", k=k, dtype=dtype)
    storage = read(held)
    assert type(storage) is (Fp8 if k == K else Dequantized) and storage.format == NAMES[dtype]
    scale = held["weight_scale_inv"]
    if kind == "blocks":
        scale = scale.repeat_interleave(128, 0)[:N].repeat_interleave(128, 1)[:, :k]
    expected = held["weight"].float() * (scale[:, None] if kind == "flat rows" else scale)
    assert storage.dequantize().equal(expected)
    assert storage.dequantize(5, 9).equal(expected[5:9])
    saved = storage.save()
    assert saved.keys() == held.keys()
    for name, tensor in held.items():
        assert saved[name].shape == tensor.shape and saved[name].dtype == tensor.dtype
        assert saved[name].float().equal(tensor.float())


@pytest.mark.parametrize("finalized", [False, True])
@pytest.mark.parametrize("k", [K, 150], ids=["planes", "ragged"])
def test_every_verb_says_what_the_plain_weight_says(k: int, finalized: bool) -> None:
    storage, x = read(tensors((2, 2), k=k)), torch.randn(5, k)
    plain = storage.dequantize()
    if finalized:
        assert storage.finalize(target_of(storage, exact=True)).startswith("F8_E4M3")
    torch.testing.assert_close(storage.matmul(x), x @ plain.t(), rtol=1e-4, atol=1e-3)
    ids = torch.tensor([3, 0, 129])
    assert storage.rows(ids).equal(plain[ids]) and storage.nbytes >= N * k


def test_it_is_fused_and_stacked() -> None:
    storage = read(tensors(()))
    plain = storage.dequantize()
    rows = read(tensors((N, 1)))
    fused = Fp8.fuse([storage, rows])
    assert fused is not None
    whole = torch.cat([plain, rows.dequantize()])
    assert fused.dequantize().equal(whole)
    assert read(fused.save()).dequantize().equal(whole)
    stacked = Fp8.stack([storage, rows])
    assert stacked is not None
    x = torch.randn(2, K)
    y = stacked.grouped(x, torch.tensor([0, 1]))
    torch.testing.assert_close(y[1], x[1] @ rows.dequantize().t(), rtol=1e-4, atol=1e-3)
    assert Fp8.fuse([storage, read(tensors((2, 2)))]) is None


def test_uqff_files_are_read() -> None:
    held = uqff()
    storage = read(held)
    assert storage.dequantize().equal(held["weight"].float() * held["weight.dequant_w_scale"])
    assert (
        storage.save().keys() == held.keys()
        and storage.finalize(target_of(storage)).count("not applied") == 0
    )
    for said, why in (([4], "format is 4"), ([], "one finite number"), ([3, 3], "one finite")):
        with pytest.raises(CheckpointError, match=why):
            read({**held, "weight.format": torch.tensor(said)})


def test_scales_of_activations_are_named_where_nothing_asks_for_them() -> None:
    held = {**tensors(()), "input_scale": torch.ones(())}
    storage = read(held)
    assert storage.finalize(target_of(storage)).endswith("; input_scale not applied")
    assert storage.save().keys() == held.keys()


def test_float_weights_are_quantized() -> None:
    weight = torch.randn(2, 8, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    both = Fp8.quantize(weight, "fp8", torch.float32)
    one = Fp8.quantize(weight[1], "fp8", torch.float32)
    assert both.shape == (2, 8, 64) and both.dequantize()[8:].equal(one.dequantize())
    assert one.save()["weight_scale"].shape == () and one.format == "F8_E4M3"
    assert read(one.save(), settings="none").dequantize().equal(one.dequantize())
    assert (one.dequantize() - weight[1].float()).abs().max() <= weight[1].abs().max() / 16


@pytest.mark.parametrize("shape", [(2,), (2, 1), (3, 2), (N, 2), (0,)], ids=str)
def test_scales_that_do_not_fit_are_refused(shape: tuple[int, ...]) -> None:
    read(tensors((2, 2)))
    with pytest.raises(CheckpointError, match=r"f\.safetensors: w\.weight_scale has shape"):
        read(tensors(shape))


@pytest.mark.parametrize("suffix", ["weight", "weight_scale"])
@pytest.mark.parametrize("k", [K, 150], ids=["planes", "ragged"])
def test_what_is_no_number_is_refused(suffix: str, k: int) -> None:
    held = tensors((), k=k)
    read(held)
    wrong = held[suffix].clone()
    wrong.view(-1)[0] = torch.nan
    with pytest.raises(CheckpointError, match=rf"w\.{suffix} contains NaN or Inf"):
        read({**held, suffix: wrong})


@pytest.mark.parametrize("size", [[0, 128], [128], "128", [True, 128], [1.5, 2]])
def test_sizes_of_blocks_that_are_none_are_refused(size: Any) -> None:
    with pytest.raises(ConfigError, match=r"weight_block_size=.* expected two positive integers"):
        read(tensors((2, 2)), weight_block_size=size)


def test_ragged_rows_are_refused_where_each_must_be_reproducible() -> None:
    storage = read(tensors((), k=150))
    assert "150 columns are not a multiple of 32" in storage.finalize(target_of(storage))
    with pytest.raises(Unsupported, match="remove --deterministic"):
        storage.finalize(target_of(storage, deterministic=True))
