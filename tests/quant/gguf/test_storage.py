"""Blocks: every format and verb against the plain unpacking, and the bytes come back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from math import prod
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from torch import Tensor

from ostro.core.errors import CheckpointError
from ostro.core.load.model import load_model
from ostro.core.nn import Embedding, Linear
from ostro.core.nn.storage import Stored
from ostro.core.ops import Target
from ostro.core.placement.offload import tensors
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import TensorInfo
from ostro.core.settings import Settings
from ostro.core.step import ROWS
from ostro.plugins.checkpoints.gguf.ggml import GGML_BY_NAME
from ostro.plugins.conformance.formats import target_of
from ostro.plugins.conformance.parity import BAR, deviation, subject
from ostro.quant import gguf as plugin
from ostro.quant.dense.storage import Dense
from ostro.quant.gguf import naive
from ostro.quant.gguf import planes as gguf_planes
from ostro.quant.gguf.planes import CELLS, FIELDS, pack
from ostro.quant.gguf.storage import Blocks
from ostro.quant.planes.planes import Planes

N, K = 24, 512
CPU = torch.device("cpu")
ALL = sorted(plugin.FORMATS)
SOME = ["Q8_0", "Q4_K", "NVFP4", "IQ2_XXS"]
"""With a scale alone, with two levels of scales and minima, and two that keep their source."""
EXACT = Target(device=torch.device("cpu"), dtype=torch.float32, exact=True)


def stored(format: str, data: Tensor, *shape: int, dtype: torch.dtype = torch.float32) -> Stored:
    """What a loader makes of a GGUF file's bytes, for a weight of this shape."""
    info = TensorInfo(
        name="blk.0.w.weight", shape=shape, format=format, nbytes=data.nbytes, file="m.gguf"
    )
    return Stored(
        tensors={"weight": data}, infos={"weight": info}, shape=shape, device=CPU, dtype=dtype
    )


def any_bytes(format: str, *shape: int, seed: int = 0) -> Tensor:
    """Bytes of rows of weights, NaN among their scales included."""
    generator = torch.Generator().manual_seed(seed)
    size = (*shape[:-1], GGML_BY_NAME[format].row_bytes(shape[-1]))
    return torch.randint(0, 256, size, generator=generator, dtype=torch.uint8)


def ordinary(
    format: str, *shape: int, seed: int = 0, least: float = 0.01, most: float = 10
) -> Tensor:
    """Bytes of rows of weights; the largest of each block is between `least` and `most`."""
    kind, found, missing = (
        GGML_BY_NAME[format],
        list[Tensor](),
        prod(shape) // GGML_BY_NAME[format].block,
    )
    while missing > 0:
        seed += 1000
        blocks = any_bytes(format, 4096, kind.block, seed=seed)
        largest = naive.dequantize(format, blocks).abs().amax(-1)
        found.append(blocks[(largest > least) & (largest < most)])
        missing -= len(found[-1])
    blocks = torch.cat(found)[: prod(shape) // kind.block]
    return blocks.reshape(*shape[:-1], kind.row_bytes(shape[-1]))


def read(
    format: str,
    *shape: int,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    data: Callable[..., Tensor] = ordinary,
) -> tuple[Blocks, Tensor, Tensor]:
    """A storage as a loader reads it, its weights and its bytes."""
    made = data(format, *shape, seed=seed)
    storage = Blocks.read(stored(format, made, *shape, dtype=dtype))
    return storage, naive.dequantize(format, made).to(dtype), made


def same(ours: Tensor, theirs: Tensor) -> bool:
    """Equal, and NaN where the other is."""
    return bool((ours.isnan() == theirs.isnan()).all()) and torch.equal(
        ours.nan_to_num(), theirs.nan_to_num()
    )


def close(y: Tensor, x: Tensor, weight: Tensor) -> bool:
    """y = x W^T up to what float32 sums may differ by."""
    error = (y.double() - x.double() @ weight.double().t()).abs()
    return bool((error <= 1e-5 * (x.abs() @ weight.abs().t()) + 1e-9).all())


@pytest.fixture(params=["as read", "finalized", "alone"])
def finalize(request: pytest.FixtureRequest) -> Callable[[Blocks], None]:
    """Do to a storage what loading does, or nothing."""

    def apply(storage: Blocks) -> None:
        if request.param != "as read":
            storage.finalize(target_of(storage, deterministic=request.param == "alone", exact=True))

    return apply


def test_the_record_claims_what_can_be_unpacked() -> None:
    assert set(naive.BLOCKS) - {"MXFP4"} == plugin.FORMATS
    (record,) = plugin.ostro_quantizers()
    for format in GGML_BY_NAME:
        info = TensorInfo(name="w", shape=(1, 32), format=format, nbytes=0)
        assert record.claims({"weight": info}, {}) == (format in plugin.FORMATS)
        assert not record.claims({"weight": info, "scales": info}, {})


@pytest.mark.sample(52)
@pytest.mark.parametrize("format", ALL)
@pytest.mark.parametrize("shape", [(5, 1024), (2, 3, 256), (0, 256), (700, 2048)], ids=str)
def test_dequantizes_as_naive_and_saves_the_bytes(format: str, shape: tuple[int, ...]) -> None:
    storage, truth, data = read(format, *shape, data=any_bytes)
    assert storage.shape == shape and storage.format == format
    assert same(storage.dequantize(), truth.flatten(0, -2))
    assert all(tensor.is_contiguous() for tensor in storage.planes.tensors().values())
    assert storage.save().keys() == {"weight"}
    assert torch.equal(storage.save()["weight"], data)
    assert (storage.source is None) == (format in FIELDS)


@pytest.mark.sample(13)
@pytest.mark.parametrize("format", ALL)
def test_dequantizes_any_rows_and_rounds_once(
    format: str, finalize: Callable[[Blocks], None]
) -> None:
    storage, truth, data = read(format, N, K, dtype=torch.bfloat16)
    finalize(storage)
    for start, stop in ((0, None), (3, 17), (N - 1, N), (5, 5)):
        assert torch.equal(storage.dequantize(start, stop), truth[start:stop])
    ids = torch.tensor([[7, 0], [7, N - 1]])
    assert torch.equal(storage.rows(ids), truth[ids])
    assert torch.equal(storage.save()["weight"], data)


@pytest.mark.sample(39)
@pytest.mark.parametrize("format", ALL)
@pytest.mark.parametrize("shape", [(3, K), (2, 3, K)], ids=str)
def test_multiplies(
    format: str, shape: tuple[int, ...], finalize: Callable[[Blocks], None]
) -> None:
    storage, truth, _ = read(format, N, K)
    finalize(storage)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert close(storage.matmul(x), x, truth)


@pytest.mark.parametrize("format", SOME)
@pytest.mark.parametrize("shape", [(70, K), (0, K), (K,)], ids=str)
def test_multiplies_any_rows(
    format: str, shape: tuple[int, ...], finalize: Callable[[Blocks], None]
) -> None:
    storage, truth, _ = read(format, N, K)
    finalize(storage)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert storage.matmul(x).shape == (*shape[:-1], N)
    assert close(storage.matmul(x), x, truth)


@pytest.mark.parametrize("format", SOME)
def test_multiplies_by_heads(format: str, finalize: Callable[[Blocks], None]) -> None:
    storage, truth, _ = read(format, N, K)
    finalize(storage)
    x = torch.randn(3, 4, N // 4)
    expected = torch.einsum("thn,hnk->thk", x, truth.view(4, N // 4, K))
    torch.testing.assert_close(storage.matmul_t(x), expected)


@pytest.mark.sample(13)
@pytest.mark.parametrize("format", ALL)
def test_fuse_and_stack_keep_the_weights(format: str, finalize: Callable[[Blocks], None]) -> None:
    parts = [read(format, N, K, seed=seed) for seed in range(3)]
    truths, data = [truth for _, truth, _ in parts], [data for _, _, data in parts]
    storages = [storage for storage, _, _ in parts]
    fused, stacked = Blocks.fuse(storages), Blocks.stack(storages)
    assert isinstance(fused, Blocks) and isinstance(stacked, Blocks)
    finalize(fused)
    finalize(stacked)
    assert torch.equal(fused.dequantize(), torch.cat(truths))
    assert torch.equal(fused.save()["weight"], torch.cat(data))
    assert stacked.shape == (3, N, K)
    assert torch.equal(stacked.dequantize(), torch.cat(truths))
    assert torch.equal(stacked.save()["weight"], torch.stack(data))
    x, chosen = torch.randn(5, K), torch.tensor([0, 0, 2, 2, 2])
    y = stacked.grouped(x, chosen)
    for row, expert in enumerate(chosen.tolist()):
        assert close(y[row : row + 1], x[row : row + 1], truths[expert])


@pytest.mark.sample(13)
@pytest.mark.parametrize("format", ALL)
def test_permutes_rows(format: str, finalize: Callable[[Blocks], None]) -> None:
    storage, truth, data = read(format, N, K)
    finalize(storage)
    permuted = storage.permute_rows(lambda tensor: tensor.flip(0))
    assert torch.equal(permuted.dequantize(), truth.flip(0))
    assert torch.equal(permuted.save()["weight"], data.flip(0))


def test_different_storages_are_not_fused() -> None:
    one: Any = read("Q4_K", N, K)[0]
    others: list[Any] = [
        read("Q4_K", N, K, dtype=torch.bfloat16)[0],
        read("Q5_K", N, K)[0],
        read("Q4_K", N, 256)[0],
        Dense(torch.zeros(N, K)),
    ]
    for other in others:
        assert Blocks.fuse([one, other]) is None
    assert Dense.fuse([others[-1], one]) is None


@pytest.mark.parametrize("format", SOME)
def test_the_source_does_not_follow_the_weight(format: str) -> None:
    storage, _, _ = read(format, N, K)
    for each in (storage, Blocks.fuse([storage, storage])):
        assert isinstance(each, Blocks)
        table = 0 if each.planes.table is None else each.planes.table.nbytes
        assert sum(tensor.nbytes for tensor in tensors(each)) == each.nbytes + table


MIXTURES = {
    "Q4_K_M": ("Q4_K", "Q4_K", "Q6_K"),
    "Q3_K_M": ("Q3_K", "Q5_K", "Q3_K"),
    "one": ("Q4_K", "Q4_K", "Q4_K"),
}


@pytest.mark.parametrize("formats", MIXTURES.values(), ids=MIXTURES)
def test_a_fused_linear_of_mixed_formats(formats: Sequence[str]) -> None:
    sizes = {"q_proj": 32, "k_proj": 8, "v_proj": 16}
    linear, truths = Linear(K, sizes), []
    for (part, size), format in zip(sizes.items(), formats, strict=True):
        linear.storages[part], truth, _ = read(format, size, K, seed=size)
        truths.append(truth)
    said = linear.finalize(EXACT)
    assert all(format in said for format in formats)
    assert (linear.fused is None) == (len(set(formats)) > 1)
    x = torch.randn(3, K)
    assert close(linear(x, ROWS), x, torch.cat(truths))


def test_a_linear_with_a_float_part_keeps_its_parts_apart() -> None:
    linear = Linear(K, {"a": N, "b": 8})
    packed, truth, _ = read("Q5_1", N, K)
    linear.storages = {"a": packed, "b": Dense(torch.ones(8, K))}
    linear.finalize(EXACT)
    x = torch.randn(3, K)
    assert close(linear(x, ROWS), x, torch.cat((truth, torch.ones(8, K))))


def test_a_tied_embedding_is_finalized_twice() -> None:
    embedding = Embedding(N, K)
    embedding.storage, truth, _ = read("Q6_K", N, K)
    embedding.finalize(EXACT)
    embedding.finalize(EXACT)
    assert torch.equal(embedding(torch.tensor([3]), ROWS), truth[3:4])


@pytest.mark.parametrize("format", SOME)
def test_each_row_alone_does_not_depend_on_the_batch(format: str) -> None:
    storage, _, _ = read(format, 256, K, dtype=torch.bfloat16)
    storage.finalize(target_of(storage, deterministic=True, exact=True))
    x = torch.randn(9, K).bfloat16()
    together = storage.matmul(x)
    assert all(torch.equal(storage.matmul(x[i : i + 1])[0], together[i]) for i in range(9))


@pytest.mark.parametrize("format", SOME)
def test_what_is_no_such_weight_is_refused(format: str) -> None:
    data, size = any_bytes(format, N, K), GGML_BY_NAME[format].nbytes
    wrong = {
        f"expected uint8 in {format} blocks of {size}": data[:, :-1],
        rf"torch\.int16, expected uint8 in {format} blocks of {size}": data.to(torch.int16),
        rf"weights \[{N - 1}, {K}\], expected \[{N}, {K}\]": data[1:],
        rf"expected \[{N}, {K}\]": data[:, size:],
    }
    for message, bad in wrong.items():
        with pytest.raises(CheckpointError, match=rf"^m\.gguf: blk\.0\.w\.weight has .*{message}"):
            Blocks.read(stored(format, bad, N, K))
    assert Blocks.read(stored(format, data, N, K)).shape == (N, K)


@torch.no_grad()
def write(reference: Any, file: Path, formats: Sequence[str]) -> None:
    """A Qwen3 as a GGUF file whose matrices are random blocks, and the reference with the same."""
    config, writer, kinds = reference.config, GGUFWriter(file, "qwen3"), cycle(formats)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config.num_hidden_layers)
    for seed, (name, parameter) in enumerate(reference.named_parameters()):
        theirs = names.get_name(name, (".weight",))
        assert theirs is not None
        if parameter.dim() == 1:
            writer.add_tensor(theirs, parameter.numpy())
            continue
        format = next(kinds)
        data = ordinary(format, *parameter.shape, seed=seed, least=0.05, most=0.5)
        writer.add_tensor(theirs, data.numpy(), raw_dtype=GGMLQuantizationType[format])
        parameter.copy_(naive.dequantize(format, data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_file_of_every_format_says_what_its_weights_say(tmp_path: Path) -> None:
    formats = sorted(plugin.FORMATS - {"Q2_0", "Q8_1"})  # of which gguf does not know the sizes
    plugins, settings = PluginManager(), Settings(dtype="float32", device="cpu", exact=True)
    plugins.load(settings)
    wide = {**plugins.get("architectures", "qwen3").conformance.wide, "num_hidden_layers": 4}
    with subject(plugins, "qwen3", config=wide) as tiny:
        write(tiny.reference, tmp_path / "m.gguf", formats)
        model = load_model(tmp_path / "m.gguf", settings, plugins)
        logits = tiny.engine(model).runner.logits(tiny.prompt)
        assert deviation(logits, tiny.run_reference(tiny.prompt)) <= BAR
    said = "; ".join(model.explain)
    assert [format for format in formats if f"{format} (" not in said] == []


@pytest.mark.parametrize("format", CELLS)
def test_moved_cells_equal_unpacked_codes(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of these formats become planes without unpacking their codes."""

    def bits(planes: Planes) -> dict[str, list[int]]:
        assert all(tensor.is_contiguous() for tensor in planes.tensors().values())
        return {name: t.view(torch.uint8).tolist() for name, t in planes.tensors().items()}

    for shape in ((N, K), (2, N, K)):
        data = any_bytes(format, *shape)
        copied = pack(format, data)
        with monkeypatch.context() as patch:
            patch.setattr(gguf_planes, "CELLS", {})
            unpacked = pack(format, data)
        assert copied.join_key == unpacked.join_key and copied.shape == unpacked.shape
        assert bits(copied) == bits(unpacked)


@pytest.mark.parametrize("format", ["Q4_0", "Q5_0", "Q8_0"])
def test_a_weight_of_one_block_is_finalized(format: str) -> None:
    """Its codes are contiguous within the block, and begin at any byte."""
    weight = torch.linspace(-1, 1, 32)[None]
    storage = Blocks.quantize(weight, format.lower(), torch.float32, None)
    storage.finalize(Target(device=torch.device("cpu"), dtype=torch.float32), embedding=False)
    assert torch.allclose(storage.matmul(torch.eye(32))[:, 0], weight[0], atol=0.1)
