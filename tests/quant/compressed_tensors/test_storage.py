"""Compressed: what was read comes back, every verb agrees, and lies are refused."""

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
from ostro.quant import compressed_tensors as plugin
from ostro.quant.compressed_tensors import naive
from ostro.quant.compressed_tensors.storage import Compressed

(RECORD,) = plugin.ostro_quantizers()
GOLDEN = load_file(Path(__file__).parent / "golden.safetensors")
CASES = sorted(name.removesuffix(".dequantized") for name in GOLDEN if "dequantized" in name)
N, K = 16, 64
METHOD = {"quant_method": "compressed-tensors"}
BLOCK = {"type": "float", "num_bits": 8, "strategy": "block", "block_structure": [12, 32]}
FORMATS = {"packed.4.group": "INT4", "packed.8.channel": "INT8", "packed.3.channel": "INT3"}
FORMATS |= {"int": "INT8", "float": "FP8", "nvfp4": "NVFP4"}


def tensors(case: str) -> dict[str, Tensor]:
    """What compressed-tensors made of a case's weight."""
    front = f"{case}.weight"
    return {f"weight{s.removeprefix(front)}": t for s, t in GOLDEN.items() if s.startswith(front)}


def infos(tensors: Mapping[str, Tensor]) -> dict[str, TensorInfo]:
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


def read(
    tensors: Mapping[str, Tensor],
    n: int = N,
    k: int = K,
    *,
    scheme: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Storage:
    groups = {"group_0": {"targets": ["Linear"], "weights": BLOCK if scheme is None else scheme}}
    return Compressed.read(
        Stored(
            tensors=dict(tensors),
            infos=infos(tensors),
            shape=(n, k),
            settings={**METHOD, "config_groups": groups, **settings},
            device=torch.device("cpu"),
            dtype=torch.float32,
        )
    )


def read_case(case: str) -> Storage:
    return read(tensors(case), scheme=BLOCK if "block" in case else {})


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


def same(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(
        ours[name].dtype == t.dtype
        and ours[name].shape == t.shape
        and ours[name].is_contiguous()
        and bits(ours[name]).equal(bits(t))
        for name, t in theirs.items()
    )


def test_the_record_claims_all_that_is_not_plain() -> None:
    for case in CASES:
        assert RECORD.claims(infos(tensors(case)), METHOD)
        assert not RECORD.claims(infos(tensors(case)), {"quant_method": "fp8"})
    assert not RECORD.claims(infos({"weight": torch.zeros(1)}), METHOD), "an ignored layer"
    assert RECORD.claims(infos({"bitmask": torch.zeros(1)}), METHOD), "refused by name"


@pytest.mark.parametrize("case", CASES)
def test_it_says_what_the_package_says_and_gives_the_bytes_back(case: str) -> None:
    storage, theirs = read_case(case), GOLDEN[f"{case}.dequantized"]
    assert isinstance(storage, Compressed)
    assert storage.format == next(f for front, f in FORMATS.items() if case.startswith(front))
    if theirs.dtype == torch.float32:
        assert storage.dequantize().equal(theirs)
    assert storage.dequantize().to(theirs.dtype).equal(theirs), "rounded once"
    assert same(storage.save(), tensors(case))


@pytest.mark.parametrize("case", CASES)
def test_every_verb_says_what_the_plain_weight_says(case: str) -> None:
    storage, x = read_case(case), torch.randn(5, K)
    assert isinstance(storage, Compressed)
    dense = storage.dequantize()
    assert f"{storage.format} ({storage.planes.bits} bits" in storage.finalize(
        target_of(storage, exact=True)
    )
    torch.testing.assert_close(storage.matmul(x), x @ dense.t(), rtol=1e-4, atol=1e-3)
    ids = torch.tensor([3, 0, 3])
    assert storage.rows(ids).equal(dense[ids]) and storage.dequantize(1, 3).equal(dense[1:3])
    fused = Compressed.fuse([storage, storage])
    assert isinstance(fused, Compressed) and fused.dequantize().equal(torch.cat([dense, dense]))
    stacked = Compressed.stack([storage, storage])
    assert stacked is not None
    rows = stacked.grouped(x, torch.tensor([0, 0, 1, 1, 1]))
    torch.testing.assert_close(rows, x @ dense.t(), rtol=1e-4, atol=1e-3)
    if case == "nvfp4":
        with pytest.raises(Unsupported, match="no common global scale"):
            fused.save()
    else:
        assert read(fused.save(), 2 * N, scheme={}).dequantize().equal(fused.dequantize())


def test_parts_with_other_global_scales_are_one() -> None:
    held = tensors("nvfp4")
    other = held | {"weight_global_scale": held["weight_global_scale"] * 3}
    one, three = read(held, scheme={}), read(other, scheme={})
    fused = Compressed.fuse([one, three])
    assert fused is not None
    assert fused.dequantize().equal(torch.cat([one.dequantize(), three.dequantize()]))
    assert not one.dequantize().equal(three.dequantize())


def test_columns_in_an_order_of_their_own() -> None:
    held = tensors("packed.4.group.zeros")
    plain = read(held, scheme={})
    index = torch.randperm(K, generator=torch.Generator().manual_seed(0)).int() % 2
    ordered = read(held | {"weight_g_idx": index}, scheme={})
    assert isinstance(ordered, Compressed) and ordered.order is not None
    codes = naive.unpack(held["weight_packed"], 4, K).float()
    zeros = naive.unpack(held["weight_zero_point"].t(), 4, N).t().float()
    group = index.long()
    expected = (codes - zeros[:, group]) * held["weight_scale"][:, group]
    assert ordered.dequantize().equal(expected)
    x = torch.randn(3, K)
    torch.testing.assert_close(ordered.matmul(x), x @ expected.t(), rtol=1e-4, atol=1e-3)
    assert same(ordered.save(), held | {"weight_g_idx": index})
    fused = Compressed.fuse([ordered, ordered])
    assert fused is not None
    assert read(fused.save(), 2 * N, scheme={}).dequantize().equal(torch.cat([expected, expected]))
    for unsaid in (torch.full((K,), -1).int(), torch.arange(K).int() // 32):
        same_order = read(held | {"weight_g_idx": unsaid}, scheme={})
        assert isinstance(same_order, Compressed) and same_order.order is None
        assert same_order.dequantize().equal(plain.dequantize())


def test_zero_points_may_be_unpacked() -> None:
    held = tensors("packed.4.group.zeros")
    zeros = naive.unpack(held["weight_zero_point"].t(), 4, N).t()
    early = held | {"weight_zero_point": (zeros.to(torch.int8) - 8).contiguous()}
    assert read(early, scheme={}).dequantize().equal(read(held, scheme={}).dequantize())
    with pytest.raises(CheckpointError, match="has zeros of more than 4 bits"):
        read(held | {"weight_zero_point": zeros.to(torch.int8) + 8}, scheme={})


@pytest.mark.parametrize("case", ["int.8.tensor.zeros", "float.8.channel.bf16"])
def test_scales_of_activations_are_left_unused(case: str) -> None:
    held = tensors(case) | {"input_scale": torch.tensor([0.5])}
    storage = read(held, scheme={})
    assert storage.dequantize().equal(read_case(case).dequantize())
    assert storage.finalize(target_of(storage)).endswith("; input_scale not applied")
    assert same(storage.save(), held)


@pytest.mark.parametrize("case", ["packed.3.channel", "int.8.channel", "nvfp4", "packed.4.group"])
def test_odd_rows_are_dequantized(case: str) -> None:
    held, k = tensors(case), 48
    whole = read_case(case).dequantize()
    if case.startswith("packed"):
        b = int(case[7])
        held["weight_packed"] = naive.pack(naive.unpack(held["weight_packed"], b, K)[:, :k], b)
        held["weight_shape"] = torch.tensor([N, k])
    elif case == "nvfp4":
        held["weight_packed"] = held["weight_packed"][:, : k // 2].contiguous()
        held["weight_scale"] = held["weight_scale"][:, :3].contiguous()
    else:
        held["weight"] = held["weight"][:, :k].contiguous()
    index = torch.arange(k).int() % 2
    expected = whole[:, :k]
    if case == "packed.4.group":
        held["weight_g_idx"] = index
        codes = naive.unpack(held["weight_packed"], 4, k).float() - 8
        expected = codes * held["weight_scale"][:, index.long()]
    storage, x = read(held, N, k, scheme={}), torch.randn(3, k)
    assert isinstance(storage, Dequantized) and storage.dequantize().equal(expected)
    assert "48 columns are not a multiple of 32" in storage.finalize(target_of(storage))
    torch.testing.assert_close(storage.matmul(x), x @ expected.t())
    assert storage.dequantize(2, 5).equal(expected[2:5]) and same(storage.save(), held)
    assert storage.nbytes >= N * k
    with pytest.raises(Unsupported, match="remove --deterministic"):
        storage.finalize(target_of(storage, deterministic=True))


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("count", [1, 8, 33, 64])
def test_codes_come_back(bits: int, count: int) -> None:
    codes = torch.randint(0, 2**bits, (3, count), dtype=torch.uint8)
    words = naive.pack(codes, bits)
    assert words.shape == (3, -(-count * bits // 32))
    assert naive.unpack(words, bits, count).equal(codes)


NAN = torch.tensor(float("nan"))
LIES = [
    ("packed.4.group", "weight_packed", torch.zeros(N, 9).int(), r"ceil\(64 b / 32\)\] of 1 to 8"),
    ("packed.4.group", "weight_packed", torch.zeros(8, 8).int(), r"ceil\(64 b / 32\)\] of 1 to 8"),
    ("packed.4.group", "weight_packed", torch.zeros(N, 34).int(), r"ceil\(64 b / 32\)\] of 1 to 8"),
    (
        "packed.4.group",
        "weight_packed",
        torch.zeros(N, 8).half(),
        r"has type torch\.float16 and belongs to",
    ),
    ("packed.4.group", "weight_shape", torch.tensor([N, 32]), r"is \[16, 32\], but the model"),
    (
        "packed.4.group",
        "weight_scale",
        torch.zeros(N, 3),
        r"has shape \[16, 3\], expected one value",
    ),
    (
        "packed.4.group",
        "weight_scale",
        torch.zeros(N, 0),
        r"has shape \[16, 0\], expected one value",
    ),
    (
        "packed.4.group",
        "weight_scale",
        torch.zeros(N, 2).int(),
        "has type torch.int32, or contains NaN",
    ),
    ("packed.4.group", "weight_scale", NAN.expand(N, 2), "or contains NaN or Inf"),
    ("packed.4.group", "weight_g_idx", torch.arange(K).int() // 24, "does not contain 2 groups"),
    ("packed.4.group", "weight_g_idx", torch.arange(K).int() // 16, "does not contain 2 groups"),
    ("packed.4.group", "weight_g_idx", torch.zeros(K).int(), "does not contain 2 groups"),
    ("packed.4.group", "weight_g_idx", torch.zeros(K), r"expected integers \[64\]"),
    ("packed.4.group", "weight_g_idx", torch.zeros(3).int(), r"expected integers \[64\]"),
    (
        "packed.4.group.zeros",
        "weight_zero_point",
        torch.zeros(N, 2).int(),
        r"expected int32 \[2, 2\]",
    ),
    (
        "packed.4.group.zeros",
        "weight_zero_point",
        torch.zeros(2, 2),
        r"has type torch\.float32, exp",
    ),
    ("int.8.channel", "weight", torch.zeros(N, 32).to(torch.int8), r"expected \[16, 64\]"),
    ("int.8.channel", "weight_zero_point", torch.zeros(8, 1).to(torch.int8), "expected one value"),
    ("float.8.block", "weight_scale", torch.zeros(3, 2), r"block \[\(12, 32\)\] of \[16, 64\]"),
    ("float.8.tensor", "weight_zero_point", torch.ones(1), "zero points other than 0 for floats"),
    ("nvfp4", "weight_packed", torch.zeros(N, 16, dtype=torch.uint8), r"expected \[16, 64 / 2\]"),
    ("nvfp4", "weight_scale", torch.zeros(N, 4), r"expected float8_e4m3fn \[16, 4\]"),
    ("nvfp4", "weight_global_scale", torch.zeros(1), "expected a positive number"),
    ("nvfp4", "weight_global_scale", torch.ones(2), "expected one finite number"),
    ("nvfp4", "weight_global_scale", torch.tensor([torch.inf]), "expected one finite number"),
    ("int.8.channel", "bitmask", torch.zeros(1), "comes with bitmask and belongs to"),
    ("int.8.channel", "weight_packed", torch.zeros(1), "of format 'None'"),
]


@pytest.mark.parametrize(("case", "suffix", "wrong", "says"), LIES)
def test_malformed_tensors_are_rejected(case: str, suffix: str, wrong: Tensor, says: str) -> None:
    read_case(case)
    with pytest.raises(CheckpointError, match=rf"f\.safetensors: w\..*{says}"):
        read({**tensors(case), suffix: wrong}, scheme=BLOCK if "block" in case else {})


@pytest.mark.parametrize(
    ("case", "suffix"), [("float.8.tensor", "weight"), ("nvfp4", "weight_scale")]
)
def test_what_is_no_number_is_refused(case: str, suffix: str) -> None:
    held = {name: tensor.clone() for name, tensor in tensors(case).items()}
    read(held, scheme={})
    held[suffix].view(torch.uint8)[1, 2] = 0xFF
    with pytest.raises(CheckpointError, match=rf"w\.{suffix} contains NaN or Inf"):
        read(held, scheme={})


def test_what_is_missing_is_named() -> None:
    held = tensors("int.8.channel")
    del held["weight_scale"]
    with pytest.raises(CheckpointError, match="is missing weight_scale"):
        read(held)


@pytest.mark.parametrize("said", [{"num_bits": 17}, {"num_bits": 8}])
def test_bits_must_agree_with_the_config(said: dict[str, int]) -> None:
    held = tensors("packed.4.group")
    read(held, scheme={"num_bits": 4})
    with pytest.raises(CheckpointError, match=f"4 bits, .* num_bits {said['num_bits']}"):
        read(held, scheme=said)


SPARSE = {"format": "dense", "sparsity_config": {"format": "sparse-24-bitmask"}}
HADAMARD = {"type": "hadamard", "apply": [{"targets": ["Linear"], "location": "input"}]}


@pytest.mark.parametrize(
    ("held", "settings", "says"),
    [
        ({"compressed": torch.zeros(1)}, SPARSE, "'sparse-24-bitmask'"),
        (
            {"weight_packed": torch.zeros(1).int(), "scale_packed": torch.zeros(1)},
            {"format": "marlin-24"},
            "scale_packed and belongs to .* 'marlin-24'",
        ),
        (
            {"weight_packed": torch.zeros(1).byte(), "weight_scale": torch.zeros(1).byte()},
            {"format": "mxfp4-pack-quantized"},
            "'mxfp4-pack-quantized'",
        ),
        (
            {"weight": torch.zeros(1), "weight_scale": torch.zeros(1)},
            {"format": "dense"},
            r"has type torch\.float32 and belongs to .* 'dense'",
        ),
        (
            tensors("int.8.channel"),
            {"transform_config": {"config_groups": {"R4": HADAMARD}}},
            r"transforms activations at run time \(input\)",
        ),
    ],
)
def test_other_kinds_are_refused_by_name(
    held: dict[str, Tensor], settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(CheckpointError, match=says):
        read(held, **settings)


def test_transforms_that_are_in_the_weights_are_no_hindrance() -> None:
    apply = [{"targets": ["Linear"], "location": "weight_input"}]
    groups = {"config_groups": {"R1": {"type": "hadamard", "apply": apply}}}
    read(tensors("int.8.channel"), transform_config=groups)


def test_rows_have_global_scales_of_their_own() -> None:
    codes, scale = torch.randint(16, (6, 32), dtype=torch.uint8), torch.rand(6, 2)
    d = torch.rand(6, 1)
    whole = naive.dequantize(codes, scale, 8, d=d)
    assert torch.equal(naive.dequantize_rows(slice(2, 5), codes, scale, 8, d=d), whole[2:5])
