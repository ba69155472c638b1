"""The safetensors container: what its own writer writes is read back, shard by shard, lazily."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny.steps import count_lines
from torch import Tensor

from ostro.core.errors import CheckpointError, ModelNotFound, PickleRefused
from ostro.core.load.container import DTYPES
from ostro.core.records import resolve
from ostro.plugins.checkpoints.safetensors import claims, ostro_checkpoints
from ostro.plugins.checkpoints.safetensors.reader import INDEX, open_safetensors


@pytest.fixture
def sharded(tmp_path: Path) -> Callable[..., Path]:
    """Write a folder of two shards; `weight_map` overrides what the index says."""

    def write(**weight_map: str) -> Path:
        save_file({"a": torch.arange(6.0).view(2, 3)}, tmp_path / "model-1.safetensors")
        save_file({"b": torch.ones(4).bfloat16()}, tmp_path / "model-2.safetensors")
        owners = {"a": "model-1.safetensors", "b": "model-2.safetensors", **weight_map}
        (tmp_path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": owners}))
        return tmp_path

    return write


def random(dtype: torch.dtype, *shape: int) -> Tensor:
    """A tensor of any dtype with a value in every element."""
    raw = torch.randint(0, 2 if dtype == torch.bool else 120, shape)
    return raw.to(torch.float32).to(dtype) if not dtype.is_complex else raw.to(dtype)


def same(a: Tensor, b: Tensor) -> bool:
    """Equal in dtype, shape and every bit."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.flatten().view(torch.uint8), b.flatten().view(torch.uint8))


@pytest.mark.parametrize("format", DTYPES)
def test_every_dtype_is_read_as_written(format: str, tmp_path: Path) -> None:
    dtype = getattr(torch, DTYPES[format][0])
    written = {
        "matrix": random(dtype, 5, 3),
        "scalar": random(dtype),
        "empty": random(dtype, 0, 4),
        "odd": random(dtype, 7),
    }
    save_file(written, tmp_path / "m.safetensors", metadata={"format": "pt"})
    container = open_safetensors(tmp_path / "m.safetensors")
    assert container.metadata == {"format": "pt"}
    assert container.tensors.keys() == written.keys()
    for name, tensor in written.items():
        info = container.tensors[name]
        assert (info.shape, info.format, info.file) == (tensor.shape, format, "m.safetensors")
        assert info.nbytes == tensor.nbytes
        assert same(container.read(name), tensor)


def test_sub_byte_formats_come_as_rows_of_bytes(tmp_path: Path) -> None:
    entry = {"dtype": "F4", "shape": [3, 8], "data_offsets": [0, 12]}
    file = tmp_path / "m.safetensors"
    write_raw(file, {"w": entry}, bytes(range(12)))
    container = open_safetensors(file)
    assert container.tensors["w"].shape == (3, 8)
    assert container.read("w").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def write_raw(file: Path, header: dict[str, Any], data: bytes, pad: int = 0) -> None:
    raw = json.dumps(header).encode() + b" " * pad
    file.write_bytes(struct.pack("<Q", len(raw)) + raw + data)


@pytest.mark.parametrize("pad", range(8))
def test_tensors_that_are_not_aligned_are_read_right(pad: int, tmp_path: Path) -> None:
    header = {"w": {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]}}
    write_raw(tmp_path / "m.safetensors", header, struct.pack("<2d", 0.5, -3), pad)
    tensor = open_safetensors(tmp_path / "m.safetensors").read("w")
    assert tensor.tolist() == [0.5, -3] and tensor.data_ptr() % 8 == 0


def test_bools_that_are_not_0_or_1_are_true(tmp_path: Path) -> None:
    header = {"w": {"dtype": "BOOL", "shape": [3], "data_offsets": [0, 3]}}
    write_raw(tmp_path / "m.safetensors", header, b"\0\1\xff")
    flags = open_safetensors(tmp_path / "m.safetensors").read("w")
    assert flags.dtype == torch.bool and flags.view(torch.uint8).tolist() == [0, 1, 1]


def test_a_tensor_outlives_its_container_and_a_write_never_reaches_the_file(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    save_file({"w": torch.zeros(20000)}, file)
    container = open_safetensors(file)
    tensor = container.read("w")
    tensor += 1
    # Both are views of the one map.
    assert container.read("w").sum() == 20000
    container.close()
    assert tensor.sum() == 20000
    with pytest.raises(CheckpointError, match="is closed"):
        container.read("w")
    assert open_safetensors(file).read("w").sum() == 0


def test_an_absent_tensor_is_named_with_its_neighbours(tmp_path: Path) -> None:
    save_file({"model.norm.weight": torch.ones(2)}, tmp_path / "m.safetensors")
    with pytest.raises(CheckpointError, match=r"no tensor 'norm.weight'; nearest: model.norm"):
        open_safetensors(tmp_path / "m.safetensors").read("norm.weight")


def test_a_sharded_folder_is_one_container(sharded: Callable[..., Path]) -> None:
    folder = sharded()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    container = open_safetensors(folder)
    assert {n: t.file for n, t in container.tensors.items()} == {
        "a": "model-1.safetensors",
        "b": "model-2.safetensors",
    }
    assert container.read("a").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert container.read("b").dtype == torch.bfloat16
    assert container.config() == {"model_type": "llama"}


def test_a_folder_without_index_is_all_its_files_or_the_one_named_model(
    sharded: Callable[..., Path],
) -> None:
    folder = sharded()
    (folder / INDEX).unlink()
    assert open_safetensors(folder).tensors.keys() == {"a", "b"}
    assert open_safetensors(folder).config() is None
    save_file({"c": torch.ones(1)}, folder / "model.safetensors")
    assert open_safetensors(folder).tensors.keys() == {"c"}


def test_a_tensor_in_two_files_needs_an_index(
    sharded: Callable[..., Path],
) -> None:
    folder = sharded()
    save_file({"a": torch.zeros(1), "b": torch.ones(4)}, folder / "model-2.safetensors")
    assert open_safetensors(folder).tensors["a"].file == "model-1.safetensors"
    (folder / INDEX).unlink()
    with pytest.raises(CheckpointError, match=r"model-2.*'a' is also in model-1"):
        open_safetensors(folder)


@pytest.mark.parametrize(
    ("shard", "reason"),
    [
        ("model-3.safetensors", "missing"),
        ("../model-1.safetensors", "leaves the model's folder"),
        ("/etc/passwd", "leaves the model's folder"),
        ("..\\model-1.safetensors", "leaves the model's folder"),
        ("link.safetensors", "symlink out of the model's folder"),
        ("loop.safetensors", "cannot be opened: Too many levels of symbolic links"),
        ("pytorch_model.bin", "not a .safetensors file"),
        ("model-1.safetensors\0", "not a .safetensors file"),
        ("", "leaves the model's folder"),
        ("x" * 5000 + ".safetensors", "missing"),
        ("model-2.safetensors", "first: 'a', expected in model-2.safetensors"),
    ],
)
def test_an_inconsistent_index_is_rejected(
    shard: str, reason: str, sharded: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = sharded(a=shard)
    outside = tmp_path_factory.mktemp("outside") / "model.safetensors"
    save_file({"a": torch.ones(1)}, outside)
    os.symlink(outside, folder / "link.safetensors")
    os.symlink("loop.safetensors", folder / "loop.safetensors")
    with pytest.raises(CheckpointError, match=reason):
        open_safetensors(folder)


def test_links_of_the_hub_cache_into_its_blobs_are_followed(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--org--name" / "snapshots" / "0123abc"
    blobs = tmp_path / "models--org--name" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    save_file({"a": torch.ones(1)}, blobs / "deadbeef")
    os.symlink("../../blobs/deadbeef", snapshot / "model.safetensors")
    assert open_safetensors(snapshot).read("a").item() == 1


@pytest.mark.parametrize(
    "index",
    [b"", b"[]", b"{", b'{"weight_map": []}', b'{"weight_map": {"a": 1}}', b'{"a":1,"a":2}'],
)
def test_an_index_that_is_malformed_is_refused(index: bytes, sharded: Callable[..., Path]) -> None:
    folder = sharded()
    (folder / INDEX).write_bytes(index)
    with pytest.raises(CheckpointError, match=INDEX):
        open_safetensors(folder)


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth", ".ckpt", ".pkl"])
def test_pickles_are_claimed_and_refused_unopened(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"pytorch_model{suffix}"
    torch.save({"a": torch.ones(1)}, file)
    for path in (tmp_path, file):
        assert claims(path)
        with pytest.raises(PickleRefused, match="save_file"):
            open_safetensors(path)
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    assert open_safetensors(tmp_path).read("a").item() == 1


def test_a_folder_without_weights_lists_what_it_holds(tmp_path: Path) -> None:
    assert not claims(tmp_path)
    (tmp_path / "README.md").touch()
    with pytest.raises(ModelNotFound, match=r"no weights in .*; found: README\.md"):
        open_safetensors(tmp_path)
    with pytest.raises(ModelNotFound, match="no such file"):
        open_safetensors(tmp_path / "model.safetensors")


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="not a regular file"):
        open_safetensors(tmp_path)


def test_a_file_that_shrank_is_detected(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(100_000)}, file)
    container = open_safetensors(tmp_path)
    os.truncate(file, 1000)
    with pytest.raises(
        CheckpointError, match=r"model\.safetensors: tensor 'a': the file was truncated"
    ):
        container.read("a")


def test_a_terabyte_file_opens_and_reads_only_requested_tensors(tmp_path: Path) -> None:
    size = 1 << 40
    header = {
        "big": {
            "dtype": "U8",
            "shape": [1 << 20, (1 << 20) - 1],
            "data_offsets": [0, size - 2**20],
        },
        "end": {"dtype": "U8", "shape": [1 << 20], "data_offsets": [size - 2**20, size]},
    }
    file = tmp_path / "model.safetensors"
    write_raw(file, header, b"")
    os.truncate(file, file.stat().st_size + size)
    container = open_safetensors(file)
    tail = container.read("end")
    assert container.read("big").shape == (1 << 20, (1 << 20) - 1)
    assert tail.sum() == 0


def test_listing_takes_a_constant_number_of_lines_per_tensor(tmp_path: Path) -> None:
    lines = []
    for count in (100, 400):
        file = tmp_path / f"{count}.safetensors"
        save_file({f"layers.{i}.weight": torch.ones(4, 4) for i in range(count)}, file)
        open_safetensors(file)  # imports
        lines.append(count_lines(lambda: open_safetensors(file)))  # noqa: B023
    assert lines[0] < lines[1] < 4 * lines[0]


def test_listing_needs_no_torch(tmp_path: Path) -> None:
    tensors = {f"model.layers.{i}.mlp.up_proj.weight": torch.ones(4, 4) for i in range(300)}
    save_file(tensors, tmp_path / "model.safetensors")
    code = (
        "import sys, pathlib\n"
        "from ostro.plugins.checkpoints.safetensors.reader import open_safetensors\n"
        "container = open_safetensors(pathlib.Path(sys.argv[1]))\n"
        "print(len(container.tensors), 'torch' in sys.modules)\n"
    )
    run = [sys.executable, "-c", code, str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.run(run, env=env, capture_output=True, text=True, check=True).stdout
    count, torch_imported = output.split()
    assert (count, torch_imported) == ("300", "False")


def test_the_record_leads_to_the_reader(tmp_path: Path) -> None:
    record, parts = ostro_checkpoints()
    save_file({"a": torch.ones(1)}, tmp_path / "x.safetensors")
    assert record.claims(tmp_path) and record.claims(tmp_path / "x.safetensors")
    assert resolve(record.open)(tmp_path).tensors.keys() == {"a"}
    assert not parts.claims(tmp_path)
