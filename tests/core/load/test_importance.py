"""Importance files of llama.cpp and mistral.rs, whole and damaged."""

from __future__ import annotations

from pathlib import Path
from struct import pack

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from torch import Tensor

from ostro.core.errors import CheckpointError, ModelNotFound
from ostro.core.load.importance import MAX_ENTRIES, read_importance
from ostro.plugins.checkpoints.gguf.reader import open_gguf


def read(path: Path) -> dict[str, Tensor]:
    return read_importance(path, open_gguf)


def older(*entries: tuple[bytes, int, list[float]], tail: bytes = b"") -> bytes:
    """llama.cpp's file before it was a GGUF."""
    parts = [pack("<i", len(entries))]
    for name, calls, values in entries:
        parts += [pack("<i", len(name)), name, pack("<ii", calls, len(values))]
        parts.append(pack(f"<{len(values)}f", *values))
    return b"".join(parts) + tail


def cimatrix(*entries: tuple[bytes, list[float]]) -> bytes:
    parts = [pack("<Q", len(entries))]
    for name, values in entries:
        parts += [pack("<Q", len(name)), name, pack("<Q", len(values))]
        parts.append(pack(f"<{len(values)}f", *values))
    return b"".join(parts)


def written(path: Path, **tensors: np.ndarray) -> Path:
    """A GGUF file of tensors, whose names have dots for double underscores."""
    writer = GGUFWriter(path, "imatrix")
    for name, values in tensors.items():
        writer.add_tensor(name.replace("__", "."), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def floats(*values: object) -> np.ndarray:
    return np.array(values, np.float32)


def test_the_gguf_form_is_sums_over_counts(tmp_path: Path) -> None:
    path = written(
        tmp_path / "m.imatrix",
        a__in_sum2=floats(2, 4, 8),
        a__counts=floats(4),
        b__in_sum2=floats([2, 4], [5, 7], [9, 3]),
        b__counts=floats([2], [0], [3]),
        b__in_gram=floats(1),
    )
    found = read(path)
    assert found.keys() == {"a", "b"}
    assert found["a"].tolist() == [0.5, 1, 2]
    assert found["b"].tolist() == [[1, 2], [1, 1], [3, 1]], (
        "an expert without inputs has equal weights"
    )


def test_the_older_form_is_means_times_calls(tmp_path: Path) -> None:
    path = tmp_path / "m.dat"
    tail = pack("<ii", 100, 4) + b"text"
    path.write_bytes(older((b"blk.0.a", 4, [2, 4]), (b"b", 0, [1, 3, 5]), tail=tail))
    found = read(path)
    assert {name: each.tolist() for name, each in found.items()} == {
        "blk.0.a": [0.5, 1],
        "b": [1, 3, 5],
    }


def test_mistral_rs_form_is_as_it_says(tmp_path: Path) -> None:
    path = tmp_path / "m.cimatrix"
    path.write_bytes(cimatrix((b"model.layers.0.q", [2, 4]), (b"b", [1])))
    found = read(path)
    assert {name: each.tolist() for name, each in found.items()} == {
        "model.layers.0.q": [2, 4],
        "b": [1],
    }
    assert all(each.dtype == torch.float32 for each in found.values())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "@offset 0: 4 bytes exceed the file"),
        (b"abc", "4 bytes exceed the file"),
        (pack("<i", 0), "@offset 4: 0 entries"),
        (pack("<i", -1), "-1 entries"),
        (pack("<i", MAX_ENTRIES + 1), f"{MAX_ENTRIES + 1} entries"),
        (pack("<ii", 1, -5), "entry 0: -5 bytes"),
        (pack("<ii", 1, 1 << 30), "entry 0: 1073741824 bytes exceed the file"),
        (pack("<ii", 1, 0) + bytes(8), "entry 0: its name must have 1 to"),
        (pack("<ii", 1, 1) + b"\xff" + bytes(8), "entry 0: its name is not UTF-8"),
        (pack("<ii", 1, 1) + b"\n" + bytes(8), "entry 0: its name contains control"),
        (older((b"a", 1, [])), "entry 'a': 0 values"),
        (pack("<ii", 1, 1) + b"a" + pack("<ii", 1, -1), "entry 'a': -1 values"),
        (older((b"a", 1, [1, 2]))[:-1], "entry 'a': 8 bytes exceed the file"),
        (older((b"a", 1, [1]), (b"a", 1, [1])), "entry 'a': occurs twice"),
        (older((b"a", 1, [1, float("nan")])), "entry 'a' contains negative"),
        (older((b"a", 1, [float("inf")])), "entry 'a' contains negative"),
        (older((b"a", 1, [-1])), "entry 'a' contains negative"),
    ],
)
def test_a_damaged_older_file_is_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "m.imatrix"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"^m\.imatrix") as error:
        read(path)
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (pack("<Q", 1 << 63), f"{1 << 63} entries"),
        (pack("<QQ", 1, 1 << 63), f"entry 0: {1 << 63} bytes exceed the file"),
        (cimatrix((b"a", [])), "entry 'a': 0 values"),
        (cimatrix((b"a", [1, 2]))[:-16] + pack("<Q", 1 << 62), "exceed the file"),
        (cimatrix((b"a", [1])) + b"x", "1 bytes follow the last entry"),
        (cimatrix((b"a", [1]), (b"a", [1])), "entry 'a': occurs twice"),
        (cimatrix((b"a", [-1])), "entry 'a' contains negative"),
    ],
)
def test_a_damaged_cimatrix_is_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "m.cimatrix"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"^m\.cimatrix") as error:
        read(path)
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({"a__counts": floats(1)}, "has no tensor *.in_sum2"),
        ({"a__in_sum2": floats(1)}, "entry 'a' has .in_sum2, but no .counts"),
        (
            {"a__in_sum2": floats([1, 2], [3, 4]), "a__counts": floats(1)},
            "entry 'a' has sums of shape [2, 2] and 1 counts",
        ),
        (
            {"a__in_sum2": np.array([1, 2], np.float16), "a__counts": floats(1)},
            "tensor 'a.in_sum2' is F16, expected F32",
        ),
        ({"a__in_sum2": floats(1, -2), "a__counts": floats(1)}, "entry 'a' contains negative"),
    ],
)
def test_a_gguf_that_does_not_hang_together_is_refused(
    tmp_path: Path, tensors: dict[str, np.ndarray], reason: str
) -> None:
    path = written(tmp_path / "m.imatrix", **tensors)
    with pytest.raises(CheckpointError, match=r"^m\.imatrix") as error:
        read(path)
    assert reason in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no such file"):
        read(tmp_path / "m.imatrix")
