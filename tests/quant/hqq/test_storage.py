"""Hqq: what hqq saved comes back, every verb agrees, and lies are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from ostro.core.errors import CheckpointError, Unsupported
from ostro.core.nn import Dequantized
from ostro.core.nn.storage import Storage, Stored
from ostro.core.records import Format, TensorInfo
from ostro.plugins.conformance.formats import target_of
from ostro.quant import hqq as plugin
from ostro.quant.hqq import naive
from ostro.quant.hqq.naive import PACKINGS, Layout
from ostro.quant.hqq.storage import Hqq

(RECORD,) = plugin.ostro_quantizers()
GOLDEN = load_file(Path(__file__).parent / "golden.safetensors")
CASES = sorted(name.removesuffix(".dequantized") for name in GOLDEN if "dequantized" in name)
N, K = 4, 128


def state(case: str) -> dict[str, Tensor]:
    """What hqq saved of a case's layer."""
    mine = {name.removeprefix(f"{case}."): t for name, t in GOLDEN.items() if case in name}
    return {name: t for name, t in mine.items() if "." not in name and name != "dequantized"}


def uqff(bits: int = 4, axis: int = 0, n: int = 6, k: int = 64) -> dict[str, Tensor]:
    """A weight of random codes in groups of 64 as a UQFF file holds it."""
    generator = torch.Generator().manual_seed(bits)
    lies = Layout((n, k), bits, 64, axis, PACKINGS[f"{bits}bit_u8"])
    codes = torch.randint(0, 2**bits, lies.matrix, generator=generator, dtype=torch.uint8)
    said = {"format": 2, "bits": bits, "axis": axis, "round_zeros": 0, "channel_wise": 1}
    made = {f"weight.{name}": torch.tensor(v, dtype=torch.uint8) for name, v in said.items()}
    return made | {
        "weight": naive.pack(codes, lies),
        "weight.scales": torch.randn(lies.scales, generator=generator),
        "weight.zeros": torch.randn(lies.scales, generator=generator),
        "weight.shape": torch.tensor([n, k]).to(torch.uint32),
        "weight.group_size": torch.tensor(64).to(torch.uint32),
        "weight.optimization_steps": torch.tensor(10).to(torch.uint32),
    }


def infos(tensors: dict[str, Tensor]) -> dict[str, TensorInfo]:
    return {
        suffix: TensorInfo(
            name=f"w.{suffix}",
            shape=tuple(t.shape),
            format=str(t.dtype),
            nbytes=t.nbytes,
            file="f.safetensors",
        )
        for suffix, t in tensors.items()
    }


def read(tensors: dict[str, Tensor], n: int = N, k: int = K) -> Storage:
    return Hqq.read(
        Stored(
            tensors=tensors,
            infos=infos(tensors),
            shape=(n, k),
            device=torch.device("cpu"),
            dtype=torch.float32,
        )
    )


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    """The same tensors, byte for byte."""
    return ours.keys() == theirs.keys() and all(
        ours[name].dtype == t.dtype
        and ours[name].shape == t.shape
        and ours[name].flatten().view(torch.uint8).equal(t.flatten().view(torch.uint8))
        for name, t in theirs.items()
    )


def test_the_record_claims_both_forms_and_no_other() -> None:
    for found in (infos(state(CASES[0])), infos(uqff())):
        assert RECORD.claims(found, {})
        assert not RECORD.claims({**found, "bias": found.popitem()[1]}, {})
    found = infos(state(CASES[0]))
    assert RECORD.claims({s: i for s, i in found.items() if s != "stores_quant_config"}, {})
    assert not RECORD.claims({s: i for s, i in found.items() if s != "W_q"}, {})


@pytest.mark.parametrize("case", CASES)
def test_it_says_what_hqq_says_and_gives_the_bytes_back(case: str) -> None:
    storage, theirs = read(state(case)), GOLDEN[f"{case}.dequantized"]
    assert type(storage) is (Dequantized if ".0.float" in case else Hqq)
    if theirs.dtype == torch.float32:
        assert storage.dequantize().equal(theirs)
    off = (storage.dequantize() - theirs.float()).abs().max()
    assert off <= 2 * torch.finfo(theirs.dtype).eps * theirs.float().abs().max()
    assert same(storage.save(), state(case))


@pytest.mark.parametrize(("n", "k"), [(6, 64), (128, 48), (192, 64)])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("bits", [4, 8])
def test_uqff_files_are_read(bits: int, axis: int, n: int, k: int) -> None:
    held = uqff(bits, axis, n, k)
    storage = read(held, n, k)
    lies = Layout((n, k), bits, 64, axis, PACKINGS[f"{bits}bit_u8"])
    codes = naive.unpack(held["weight"], lies).float()
    expected = ((codes - held["weight.zeros"]) * held["weight.scales"]).view(n, k)
    assert storage.format == f"HQQ{bits}" and storage.dequantize().equal(expected)
    assert storage.dequantize(2, 5).equal(expected[2:5]) and len(storage.dequantize(5, 5)) == 0
    assert same(storage.save(), held)


@pytest.mark.parametrize("finalized", [False, True])
@pytest.mark.parametrize("case", ["3.64.1.float32", "3.64.0.float32", "4.64.0.float32"])
def test_every_verb_says_what_the_plain_weight_says(case: str, finalized: bool) -> None:
    storage, x = read(state(case)), torch.randn(5, K)
    plain = storage.dequantize()
    if finalized:
        assert storage.format in storage.finalize(target_of(storage, exact=True))
    torch.testing.assert_close(storage.matmul(x), x @ plain.t(), rtol=1e-4, atol=1e-4)
    ids = torch.tensor([3, 0, 3])
    assert storage.rows(ids).equal(plain[ids]) and storage.dequantize(1, 3).equal(plain[1:3])
    assert storage.nbytes >= N * K * 3 // 8


def test_groups_along_rows_are_fused_and_stacked() -> None:
    storage = read(state("4.64.1.float16"))
    plain = storage.dequantize()
    fused = Hqq.fuse([storage, storage])
    assert fused is not None and fused.dequantize().equal(torch.cat([plain, plain]))
    assert read(fused.save(), 2 * N).dequantize().equal(fused.dequantize())
    stacked = Hqq.stack([storage, storage])
    x = torch.randn(3, K)
    assert stacked is not None
    y = stacked.grouped(x, torch.tensor([0, 1, 1]))
    torch.testing.assert_close(y, x @ plain.t(), rtol=1e-4, atol=1e-4)
    assert Hqq.fuse([storage, read(state("4.64.1.float32"))]) is None


def test_groups_across_rows_stay_whole() -> None:
    storage = read(state("4.64.0.float32"))
    assert Dequantized.fuse([storage, storage]) is None and Dequantized.stack([storage]) is None
    with pytest.raises(Unsupported, match="remove --deterministic"):
        storage.finalize(target_of(storage, deterministic=True))


@pytest.mark.parametrize("format", RECORD.makes, ids=lambda format: format.name)
def test_float_weights_are_quantized_and_saved_as_hqq_does(format: Format) -> None:
    weight = torch.randn(2, 8, K, generator=torch.Generator().manual_seed(0))
    made = Hqq.quantize(weight.bfloat16(), format.name, torch.float32)
    assert made.shape == (2, 8, K) and made.nbytes * 8 == format.bits * weight.numel()
    one = Hqq.quantize(weight[0], format.name, torch.float32)
    saved = one.save()
    assert saved.keys() == plugin.HQQ and bool(RECORD.claims(infos(saved), {}))
    assert read(saved, 8).dequantize().equal(one.dequantize())
    assert (one.dequantize() - weight[0]).abs().mean() <= 1.5 / (2**one.planes.bits - 1)
    assert format.sensitive in {None, *(other.name for other in RECORD.makes)}


LIES = [
    ("nbits", torch.tensor(17, dtype=torch.int32), "codes of 17 bits, expected '8bit_u8' for 8"),
    ("packing", torch.tensor(list(b"4bit_99"), dtype=torch.uint8), "is '4bit_99' for codes of 4"),
    ("group_size", torch.tensor(0), "is 0, which does not divide 512"),
    ("group_size", torch.tensor(100), "is 100, which does not divide 512"),
    ("group_size", torch.tensor(32), r"w\.scale has shape \[8, 1\], expected .* groups of 32"),
    ("axis", torch.tensor([1, 1]), r"is \[1, 1\], expected one finite number"),
    ("nbits", torch.tensor(torch.nan), r"is \[nan\], expected one finite number"),
    ("shape", torch.tensor(512), r"is \[512\], but"),
    ("axis", torch.tensor(2), "is 2, expected 0 or 1"),
    ("shape", torch.tensor([4, 64]), r"is \[4, 64\], but the model's config expects \[4, 128"),
    ("W_q", torch.zeros(3, 64, dtype=torch.uint8), "has 192 bytes, expected .* of 4 bits"),
    ("zero", torch.zeros(7, 1), r"w\.zero has shape \[7, 1\]"),
    ("scale", torch.zeros(8, 1, dtype=torch.int32), r"w\.scale has shape .* floats \[8, 1\]"),
    ("quant_zero", torch.tensor(1), "quantized scales or zeros"),
    ("channel_wise", torch.tensor(0), "one scale for the whole weight"),
]


@pytest.mark.parametrize(("suffix", "wrong", "says"), LIES)
def test_malformed_tensors_are_rejected(suffix: str, wrong: Tensor, says: str) -> None:
    held = state("4.64.1.float32")
    read(held)
    with pytest.raises(CheckpointError, match=says):
        read({**held, suffix: wrong})


def test_codes_of_more_bits_are_refused() -> None:
    held = state("5.64.1.float32")
    read(held)
    held["W_q"] = held["W_q"].clone()
    held["W_q"][0, 0] = 32
    with pytest.raises(CheckpointError, match="has codes of more than 5 bits"):
        read(held)


@pytest.mark.parametrize(("suffix", "value"), [("format", 4), ("bits", 3)])
def test_what_a_uqff_file_says_must_be_hqq(suffix: str, value: int) -> None:
    held = uqff()
    read(held, 6, 64)
    with pytest.raises(CheckpointError, match="expected 2 of 4 or 8"):
        read({**held, f"weight.{suffix}": torch.tensor(value, dtype=torch.uint8)}, 6, 64)
