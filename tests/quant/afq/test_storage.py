"""Afq: every verb against the dequantized weight, the bytes come back, and lies are refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ostro.core.errors import CheckpointError
from ostro.core.nn.storage import Stored
from ostro.core.records import Format, TensorInfo
from ostro.plugins.conformance.formats import target_of
from ostro.quant import afq as plugin
from ostro.quant.afq import naive
from ostro.quant.afq.storage import Afq

N, K = 24, 256
(RECORD,) = plugin.ostro_quantizers()
NAMES = {torch.uint32: "U32", torch.uint8: "U8", torch.float16: "F16", torch.float32: "F32"}


def tensors(bits: int = 4, group: int = 64, *, uqff: bool = False, n: int = N) -> dict[str, Tensor]:
    """A weight of random codes, as MLX or a UQFF file holds it."""
    generator = torch.Generator().manual_seed(bits + group + n)
    codes = torch.randint(0, 2**bits, (n, K), generator=generator, dtype=torch.uint8)
    scales, biases = torch.randn(2, n, K // group, generator=generator).half()
    front = "weight." if uqff else ""
    made = {"weight": naive.pack(codes, bits), f"{front}scales": scales, f"{front}biases": biases}
    said = {"format": 4, "bits": bits, "group_size": group} if uqff else {}
    return made | {f"weight.{n}": torch.tensor(v, dtype=torch.uint8) for n, v in said.items()}


def infos(tensors: dict[str, Tensor]) -> dict[str, TensorInfo]:
    return {
        suffix: TensorInfo(
            name=f"w.{suffix}",
            shape=tuple(t.shape),
            format=NAMES[t.dtype],
            nbytes=t.nbytes,
            file="f.safetensors",
        )
        for suffix, t in tensors.items()
    }


def read(
    tensors: dict[str, Tensor], n: int = N, k: int = K, dtype: torch.dtype = torch.float32
) -> Afq:
    device = torch.device("cpu")
    return Afq.read(
        Stored(tensors=tensors, infos=infos(tensors), shape=(n, k), device=device, dtype=dtype)
    )


@pytest.mark.parametrize("uqff", [False, True], ids=["mlx", "uqff"])
def test_the_record_claims_both_forms_and_no_other(uqff: bool) -> None:
    found = infos(tensors(uqff=uqff))
    assert RECORD.claims(found, {})
    for suffix in found:
        assert not RECORD.claims({s: info for s, info in found.items() if s != suffix}, {})
    assert not RECORD.claims({**found, "g_idx": found["weight"]}, {})


@pytest.mark.parametrize("uqff", [False, True], ids=["mlx", "uqff"])
@pytest.mark.parametrize("bits", naive.BITS)
@pytest.mark.parametrize("group", naive.GROUPS)
def test_it_says_what_the_bytes_say_and_gives_them_back(bits: int, group: int, uqff: bool) -> None:
    stored = tensors(bits, group, uqff=uqff)
    storage = read(stored)
    words, scales, biases = (
        stored[s] for s in stored if s.endswith(("weight", "scales", "biases"))
    )
    assert storage.format == f"AFQ{bits}" and storage.planes.group == group
    assert storage.dequantize().equal(naive.dequantize(words, scales, biases, bits))
    saved = storage.save()
    assert saved.keys() == stored.keys()
    assert all(saved[s].dtype == t.dtype and saved[s].equal(t) for s, t in stored.items())


@pytest.mark.parametrize("finalized", [False, True])
@pytest.mark.parametrize("bits", naive.BITS)
def test_every_verb_says_what_the_plain_weight_says(bits: int, finalized: bool) -> None:
    storage, x = read(tensors(bits)), torch.randn(5, K)
    plain = storage.dequantize()
    if finalized:
        assert f"AFQ{bits} ({bits} bits, groups of 64)" in storage.finalize(
            target_of(storage, exact=True)
        )
    torch.testing.assert_close(storage.matmul(x), x @ plain.t(), rtol=1e-4, atol=1e-3)
    ids = torch.tensor([3, 0, 3])
    assert storage.rows(ids).equal(plain[ids])
    fused = Afq.fuse([storage, read(tensors(bits, n=8), 8)])
    assert fused is not None and fused.shape == (N + 8, K)
    stacked = Afq.stack([storage, storage])
    assert stacked is not None
    rows = stacked.grouped(x, torch.tensor([0, 0, 1, 1, 1]))
    torch.testing.assert_close(rows, x @ plain.t(), rtol=1e-4, atol=1e-3)


def test_different_storages_are_not_fused() -> None:
    one = read(tensors())
    for other in (read(tensors(3)), read(tensors(4, 32)), read(tensors(), dtype=torch.bfloat16)):
        assert Afq.fuse([one, other]) is None


@pytest.mark.parametrize("format", RECORD.makes, ids=lambda format: format.name)
def test_float_weights_are_quantized(format: Format) -> None:
    weight = torch.randn(2, N, K, generator=torch.Generator().manual_seed(0))
    made = Afq.quantize(weight.half(), format.name, torch.float32)
    assert made.format.lower() == format.name and made.shape == (2, N, K)
    assert made.nbytes * 8 == format.bits * weight.numel()
    step = (weight.amax() - weight.amin()) / (2**made.planes.bits - 1)
    assert (made.dequantize() - weight.flatten(0, 1)).abs().max() <= step
    again = read(Afq.quantize(weight[0], format.name, torch.float32).save())
    assert again.dequantize().shape == (N, K)
    assert format.sensitive in {other.name for other in RECORD.makes}


@pytest.mark.parametrize(
    ("suffix", "wrong", "says"),
    [
        ("weight", torch.zeros(N, 33, dtype=torch.uint32), r"33 words per row, 4\.125 bits"),
        ("weight", torch.zeros(N, 56, dtype=torch.uint32), "7 bits for each of 256"),
        (
            "weight",
            torch.zeros(N - 1, 32, dtype=torch.uint32),
            r"shape \[23, 32\], which does not match",
        ),
        ("weight", torch.zeros((), dtype=torch.uint32), r"shape \[\], which does not match"),
        ("biases", torch.zeros(N, 2).half(), r"biases \[24, 2\]"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(suffix: str, wrong: Tensor, says: str) -> None:
    stored = tensors()
    read(stored)
    with pytest.raises(CheckpointError, match=rf"f\.safetensors: w\.weight has .*{says}"):
        read({**stored, suffix: wrong})


@pytest.mark.parametrize("groups", [0, 1, 3, 16])
def test_groups_that_mlx_has_not_are_refused(groups: int) -> None:
    other = torch.zeros(N, groups).half()
    with pytest.raises(CheckpointError, match=rf"w\.scales has {groups} scales for 256 weights"):
        read({**tensors(), "scales": other, "biases": other})


@pytest.mark.parametrize(
    ("suffix", "value", "says"),
    [
        ("format", [2], r"the metadata of the file is \[2, 4, 64\]"),
        ("bits", [17], r"the metadata of the file is \[4, 17, 64\]"),
        ("bits", [], r"weight\.bits is \[\], expected one finite number"),
        ("group_size", [0], r"the metadata of the file is \[4, 4, 0\]"),
        ("group_size", [64, 64], r"is \[64, 64\], expected one finite number"),
    ],
)
def test_what_a_uqff_file_says_must_agree(suffix: str, value: list[int], says: str) -> None:
    stored = tensors(uqff=True)
    read(stored)
    with pytest.raises(CheckpointError, match=says):
        read({**stored, f"weight.{suffix}": torch.tensor(value, dtype=torch.uint8)})
