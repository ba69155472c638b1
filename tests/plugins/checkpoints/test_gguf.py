"""The GGUF container: what gguf's own writer writes is read back, metadata, tensors and splits."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFEndian, GGUFReader, GGUFWriter
from tiny.steps import count_lines

from ostro.core.errors import CheckpointError, ModelNotFound
from ostro.core.records import resolve
from ostro.plugins.checkpoints.gguf import claims, ostro_checkpoints
from ostro.plugins.checkpoints.gguf.ggml import GGML_BY_NAME, GGML_TYPES, GGML_WITHDRAWN
from ostro.plugins.checkpoints.gguf.reader import open_gguf

VOCABULARIES = Path(__file__).parents[4] / "shared" / "data" / "vocab"

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a GGUF file with gguf's writer; `fill(writer)` adds what it should hold."""

    def make(fill: Callable[[GGUFWriter], None], name: str = "model.gguf", **options: Any) -> Path:
        writer = GGUFWriter(tmp_path / name, "llama", **options)
        fill(writer)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return tmp_path / name

    return make


def test_the_type_table_is_that_of_the_gguf_package() -> None:
    # The package still has the Q8_1 of 2023 (two floats); the C struct has two halves since.
    sizes = {**GGML_QUANT_SIZES, GGMLQuantizationType.Q8_1: (32, 36)}
    for theirs in GGMLQuantizationType:
        ours = GGML_TYPES[theirs.value]
        assert (ours.name, (ours.block, ours.nbytes)) == (theirs.name, sizes[theirs])
        assert GGML_BY_NAME[theirs.name] is ours
    assert not GGML_WITHDRAWN.keys() & GGML_TYPES.keys()


def test_metadata_of_every_kind_is_read_as_written(write: Write) -> None:
    def fill(writer: GGUFWriter) -> None:
        writer.add_uint8("u8", 255)
        writer.add_int8("i8", -128)
        writer.add_uint16("u16", 65535)
        writer.add_int16("i16", -32768)
        writer.add_uint32("u32", 2**32 - 1)
        writer.add_int32("i32", -(2**31))
        writer.add_uint64("u64", 2**64 - 1)
        writer.add_int64("i64", -(2**63))
        writer.add_float32("f32", 0.1)
        writer.add_float64("f64", 0.1)
        writer.add_bool("yes", True)
        writer.add_bool("no", False)
        writer.add_string("text", "héllo\n🦙")
        writer.add_array("numbers", [1, -2, 3])
        writer.add_array("floats", [0.5, -1.5])
        writer.add_array("flags", [True, False, True])
        writer.add_array("words", ["", "a", "🦙"])

    file = write(fill)
    meta = open_gguf(file).metadata
    assert meta["general.architecture"] == "llama"
    expected = {
        "u8": 255,
        "i8": -128,
        "u16": 65535,
        "i16": -32768,
        "u32": 2**32 - 1,
        "i32": -(2**31),
        "u64": 2**64 - 1,
        "i64": -(2**63),
        "f64": 0.1,
        "yes": True,
        "no": False,
        "text": "héllo\n🦙",
        "words": ["", "a", "🦙"],
    }
    for key, value in expected.items():
        assert meta[key] == value and type(meta[key]) is type(value)
    assert meta["f32"] == pytest.approx(0.1, rel=1e-7)
    assert meta["numbers"].tolist() == [1, -2, 3] and meta["numbers"].dtype == np.int32
    assert meta["floats"].tolist() == [0.5, -1.5]
    assert meta["flags"].tolist() == [True, False, True] and meta["flags"].dtype == np.bool_
    with pytest.raises(ValueError, match="read-only"):
        meta["numbers"][0] = 7


def test_plain_tensors_come_typed_and_in_torch_order(write: Write) -> None:
    arrays = {
        "f32": np.random.default_rng(0).normal(size=(300, 60)).astype(np.float32),
        "f16": np.arange(24, dtype=np.float16).reshape(2, 3, 4),
        "f64": np.arange(3, dtype=np.float64),
        "i8": np.arange(-3, 3, dtype=np.int8),
        "i16": np.arange(4, dtype=np.int16),
        "i32": np.arange(4, dtype=np.int32).reshape(1, 2, 1, 2),
        "i64": np.arange(4, dtype=np.int64),
    }
    file = write(lambda w: [w.add_tensor(name, array) for name, array in arrays.items()])
    container = open_gguf(file)
    assert list(container.tensors) == list(arrays)
    for name, array in arrays.items():
        info, tensor = container.tensors[name], container.read(name)
        assert (info.shape, info.format) == (array.shape, name.upper())
        assert (info.nbytes, info.file) == (array.nbytes, "model.gguf")
        assert torch.equal(tensor, torch.from_numpy(array))
    # A view of the map, not a copy: a change shows in the next read (and not in the file).
    container.read("f32").fill_(7)
    assert bool((container.read("f32") == 7).all())
    assert container.config() is None


def test_bfloat16_comes_typed(write: Write) -> None:
    wanted = torch.randn(3, 4).bfloat16()
    raw = wanted.view(torch.uint8).numpy()
    file = write(lambda w: w.add_tensor("w", raw, raw_dtype=GGMLQuantizationType.BF16))
    assert open_gguf(file).tensors["w"].shape == (3, 4)
    assert torch.equal(open_gguf(file).read("w"), wanted)


@pytest.mark.parametrize(
    "kind", [t for t in GGML_TYPES.values() if t.block > 1], ids=lambda t: t.name
)
def test_packed_tensors_come_as_rows_of_bytes(kind: Any, tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 256, 6 * 2 * kind.nbytes, dtype=np.uint8)
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", 1) + b"w"
    header += struct.pack("<I3QIQ", 3, 2 * kind.block, 3, 2, kind.id, 0)
    header += bytes(-len(header) % 32)
    (tmp_path / "m.gguf").write_bytes(header + data.tobytes())
    container = open_gguf(tmp_path / "m.gguf")
    info, tensor = container.tensors["w"], container.read("w")
    assert (info.format, info.shape) == (kind.name, (2, 3, 2 * kind.block))
    assert info.nbytes == data.size
    assert tensor.dtype == torch.uint8 and tensor.shape == (2, 3, 2 * kind.nbytes)
    assert torch.equal(tensor.flatten(), torch.from_numpy(data))


def resident(path: Path) -> int:
    """Bytes of a file in the memory of this process."""
    areas = Path("/proc/self/smaps").read_text().split("VmFlags")
    mine = [area for area in areas if str(path) in area]
    return sum(int(area.partition("Rss:")[2].split()[0]) * 1024 for area in mine)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_packed_tensor_leaves_memory_with_its_last_view(tmp_path: Path) -> None:
    writer, path = GGUFWriter(tmp_path / "m.gguf", "llama"), tmp_path / "m.gguf"
    rows = np.full((256, 34 * 128), 7, np.uint8)
    writer.add_tensor("w", rows, raw_dtype=GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    container = open_gguf(path)
    before = resident(path)
    view = container.read("w")[1:]
    assert int(view.sum(dtype=torch.int64)) == 7 * view.numel()
    assert resident(path) - before >= view.nbytes / 2
    del view
    assert resident(path) - before < rows.nbytes / 4
    assert torch.equal(container.read("w"), torch.from_numpy(rows))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_small_tensors_leave_no_pages_in_memory(write: Write) -> None:
    def fill(writer: GGUFWriter) -> None:
        for layer in range(16):
            writer.add_tensor(f"w{layer}", np.zeros((64, 4096), np.float32))
            writer.add_tensor(f"norm{layer}", np.full(576, layer, np.float32))

    path = write(fill)
    container = open_gguf(path)
    before = resident(path)
    norms = [container.read(f"norm{layer}") for layer in range(16)]
    assert [int(norm[0]) for norm in norms] == list(range(16))
    assert resident(path) - before < 64 << 10


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_other_alignments_are_honoured(alignment: int, write: Write) -> None:
    def fill(writer: GGUFWriter) -> None:
        writer.add_custom_alignment(alignment)
        writer.add_tensor("a", np.ones(3, np.float32))
        writer.add_tensor("b", np.full(3, 2, np.float32))

    container = open_gguf(write(fill))
    assert container.read("b").tolist() == [2, 2, 2]


def test_big_endian_is_refused_by_name(write: Write) -> None:
    file = write(lambda w: w.add_uint32("a", 1), endianess=GGUFEndian.BIG)
    with pytest.raises(CheckpointError, match=r"model\.gguf@offset 4: is big-endian"):
        open_gguf(file)


@pytest.fixture
def split(write: Write) -> Callable[[], list[Path]]:
    """Write a model of five tensors in three files."""

    def make() -> list[Path]:
        def fill(writer: GGUFWriter) -> None:
            writer.add_string("general.name", "split")
            for i in range(5):
                writer.add_tensor(f"blk.{i}.w", np.full((2, 4), i, np.float32))

        folder = write(fill, split_max_tensors=2).parent
        files = sorted(folder.glob("*.gguf"))
        assert [f.name for f in files] == [f"model-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
        return files

    return make


@pytest.mark.parametrize("chosen", [0, 1, 2, None])
def test_a_split_model_is_one_container_whichever_file_is_named(
    chosen: int | None, split: Callable[[], list[Path]]
) -> None:
    files = split()
    container = open_gguf(files[0].parent if chosen is None else files[chosen])
    assert list(container.tensors) == [f"blk.{i}.w" for i in range(5)]
    assert [t.file for t in container.tensors.values()] == [files[i // 2].name for i in range(5)]
    assert container.metadata["general.name"] == "split"
    assert all(container.read(f"blk.{i}.w").unique().tolist() == [i] for i in range(5))


def test_a_split_model_with_a_file_missing_misnamed_or_twice_is_refused(
    split: Callable[[], list[Path]],
) -> None:
    first, second, third = split()
    kept = third.read_bytes()
    third.unlink()
    with pytest.raises(CheckpointError, match=r"model-00003-of-00003\.gguf: missing, file 3 of 3"):
        open_gguf(first)
    shutil.copy(second, third)
    with pytest.raises(CheckpointError, match=r"split.no is 1 .* the file is misnamed"):
        open_gguf(first)
    third.write_bytes(kept.replace(b"blk.4.w", b"blk.0.w"))
    with pytest.raises(CheckpointError, match=r"'blk.0.w' is also in model-00001"):
        open_gguf(first)
    third.write_bytes(kept)
    alone = first.rename(first.with_name("renamed.gguf"))
    with pytest.raises(CheckpointError, match=r"must end in -00001-of-00003\.gguf"):
        open_gguf(alone)


def test_a_folder_holds_one_model_and_perhaps_its_projector(write: Write) -> None:
    file = write(lambda w: w.add_tensor("w", np.ones(2, np.float32)))
    folder = file.parent
    write(lambda w: w.add_uint32("a", 1), "mmproj-model.gguf")
    assert claims(folder) and open_gguf(folder).read("w").tolist() == [1, 1]
    write(lambda w: w.add_uint32("a", 1), "other.gguf")
    with pytest.raises(CheckpointError, match=r"several models: model\.gguf, other\.gguf"):
        open_gguf(folder)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    assert not claims(tmp_path)
    with pytest.raises(ModelNotFound, match="no GGUF model in"):
        open_gguf(tmp_path)
    with pytest.raises(ModelNotFound, match="no such file"):
        open_gguf(tmp_path / "model.gguf")


def test_a_file_is_claimed_by_its_first_bytes_too(write: Write, tmp_path: Path) -> None:
    (record,) = ostro_checkpoints()
    file = write(lambda w: w.add_tensor("w", np.ones(2, np.float32)))
    blob = file.rename(tmp_path / "sha256-0123")
    assert record.claims(blob) and not record.claims(tmp_path / "missing")
    assert resolve(record.open)(blob).tensors.keys() == {"w"}
    (tmp_path / "text").write_text("hello")
    assert not record.claims(tmp_path / "text")


def test_a_file_that_shrank_is_detected(write: Write) -> None:
    file = write(lambda w: w.add_tensor("w", np.ones(10_000, np.float32)))
    container = open_gguf(file)
    os.truncate(file, 500)
    with pytest.raises(CheckpointError, match="tensor 'w': the file was truncated from"):
        container.read("w")


def test_a_file_of_a_terabyte_opens(write: Write) -> None:
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", 1) + b"w"
    header += struct.pack("<I2QIQ", 2, 1 << 18, 1 << 20, 0, 0)
    file = write(lambda w: None)
    file.write_bytes(header)
    os.truncate(file, 4096 + (1 << 40))
    tensor = open_gguf(file).read("w")
    assert tensor.shape == (1 << 20, 1 << 18) and tensor[-1, -1] == 0


def test_a_vocabulary_takes_a_constant_number_of_lines_per_token(write: Write) -> None:
    lines = []
    for count in (1000, 4000):
        words = [f"word{i}" for i in range(count)]
        file = write(lambda w: w.add_token_list(words))  # noqa: B023
        open_gguf(file)  # imports
        lines.append(count_lines(lambda: open_gguf(file).metadata))  # noqa: B023
    assert lines[0] < lines[1] < 4 * lines[0]


@pytest.mark.process
def test_a_large_vocabulary_needs_no_torch(tmp_path: Path) -> None:
    def strings(key: bytes, words: list[str]) -> bytes:
        packed = [string(word.encode()) for word in words]
        return string(key) + struct.pack("<IIQ", 9, 8, len(words)) + b"".join(packed)

    def string(raw: bytes) -> bytes:
        return struct.pack("<Q", len(raw)) + raw

    words = [f"▁word{i}" for i in range(262_144)]
    raw = b"GGUF" + struct.pack("<IQQ", 3, 300, 3) + strings(b"tokens", words)
    raw += strings(b"merges", [f"wo rd{i}" for i in range(500_000)])
    raw += string(b"scores") + struct.pack("<IIQ", 9, 6, len(words))
    raw += np.arange(len(words), dtype=np.float32).tobytes()
    for i in range(300):
        raw += string(b"blk.%d.w" % i) + struct.pack("<IQIQ", 1, 8, 0, 32 * i)
    file = tmp_path / "model.gguf"
    file.write_bytes(raw + bytes(-len(raw) % 32 + 300 * 32))
    code = (
        "import sys, pathlib\n"
        "from ostro.plugins.checkpoints.gguf.reader import open_gguf\n"
        "container = open_gguf(pathlib.Path(sys.argv[1]))\n"
        "print(len(container.tensors), 'torch' in sys.modules)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = [sys.executable, "-c", code, str(file)]
    output = subprocess.run(run, env=env, capture_output=True, text=True, check=True).stdout
    count, torch_imported = output.split()
    assert (count, torch_imported) == ("300", "False")
    meta = open_gguf(file).metadata
    assert meta["tokens"] == words and meta["merges"][-1] == "wo rd499999"
    assert meta["scores"][-1] == 262_143


def slow(name: str) -> Any:
    """The package takes seconds for a large vocabulary."""
    return pytest.param(name, marks=pytest.mark.slow)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "name", ["bert-bge", "llama-spm", "phi-3", slow("gpt-2"), slow("llama-bpe"), slow("qwen2")]
)
def test_real_vocabularies_read_as_the_gguf_package_reads_them(name: str) -> None:
    file = VOCABULARIES / f"ggml-vocab-{name}.gguf"
    if not file.exists():
        pytest.skip("the folder of real vocabularies is not there")
    ours, theirs = open_gguf(file).metadata, GGUFReader(file).fields
    assert ours.keys() == {key for key in theirs if not key.startswith("GGUF.")}
    for key in ("tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"):
        value = ours[key].tolist() if isinstance(ours[key], np.ndarray) else ours[key]
        assert value == theirs[key].contents()
