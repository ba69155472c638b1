"""Malformed GGUF files: each is refused at once with the file, the offset and the reason, or legal.

The cases cover those of llama.cpp's test-gguf.cpp and more.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter

from ostro.core.errors import CheckpointError
from ostro.plugins.checkpoints.gguf.reader import open_gguf

LINES = 5000
"""The limit on the lines of Python for one file; most take a few hundred."""
READER = "ostro.plugins.checkpoints.gguf.reader:open_gguf"
OPENED = "opened"
F32, I32, Q4_0, Q4_K = 0, 26, 2, 12


def header(n_tensors: int, n_keys: int, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, n_tensors, n_keys)


def string(raw: bytes) -> bytes:
    return struct.pack("<Q", len(raw)) + raw


def u32(key: bytes, value: int) -> bytes:
    return string(key) + struct.pack("<II", 4, value)


def array(kind: int, count: int, data: bytes = b"") -> bytes:
    """A file of one key that holds an array."""
    return header(0, 1) + string(b"k") + struct.pack("<IIQ", 9, kind, count) + data


def line(name: bytes, dims: list[int], kind: int, offset: int) -> bytes:
    """A line of the tensor table."""
    raw = string(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
    return raw + struct.pack("<IQ", kind, offset)


def file(*parts: bytes, data: int = 128, alignment: int = 32) -> bytes:
    raw = b"".join(parts)
    return raw + bytes(-len(raw) % alignment) + bytes(data)


def one(dims: list[int], kind: int = F32, offset: int = 0, data: int = 128) -> bytes:
    """A file of one tensor."""
    return file(header(1, 0), line(b"t", dims, kind, offset), data=data)


def two(a: bytes, b: bytes, data: int = 256) -> bytes:
    return file(header(2, 0), a, b, data=data)


def aligned(key_type: int, value: int, offset: int = 0) -> bytes:
    """A file that names its alignment and holds two tensors, the second at `offset`."""
    key = string(b"general.alignment") + struct.pack("<II", key_type, value)
    return file(header(2, 1), key, line(b"t", [32], F32, 0), line(b"u", [1], F32, offset), data=512)


PAST = "goes past the end of the file, which is truncated or damaged; download it again"

CASES: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "is empty; download it again"),
    "4 bytes": (b"GGUF", PAST),
    "bad magic": (header(0, 0, magic=b"FUGG"), "not a GGUF file"),
    "version 0": (header(0, 0, 0), "version 0 is not supported"),
    "version 1": (header(0, 0, 1), "version 1 is not supported; 2 and 3 are"),
    "version 4": (header(0, 0, 4), "version 4 is not supported"),
    "version 99": (header(0, 0, 99), "version 99 is not supported"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "2^63 keys": (header(0, 1 << 63), PAST),
    "2^63 tensors": (header(1 << 63, 0), PAST),
    "-1 keys": (header(0, (1 << 64) - 1), PAST),
    "-1 tensors": (header((1 << 64) - 1, 0), PAST),
    "1000 tensors, none there": (header(1000, 0), PAST),
    "a million keys in zeros": (header(0, 10**6) + bytes(14 * 10**6), "more than"),
    "key of 2^40 bytes": (header(0, 1) + struct.pack("<Q", 1 << 40) + b"abcdefgh", "1 to 65535"),
    "key of 0 bytes": (header(0, 1) + string(b"") + bytes(20), "1 to 65535"),
    "key not UTF-8": (header(0, 1) + u32(b"\xff", 1), "key name is not UTF-8"),
    "key cut off": (header(0, 1) + struct.pack("<Q", 60) + b"abcdefgh", PAST),
    "key twice": (header(0, 2) + u32(b"a", 1) + u32(b"a", 2), "key 'a' occurs twice"),
    "value type 13": (header(0, 1) + string(b"k") + struct.pack("<IQ", 13, 0), "value type 13"),
    "value type 99": (header(0, 1) + string(b"k") + struct.pack("<IQ", 99, 0), "value type 99"),
    "value cut off": (header(0, 1) + string(b"key") + struct.pack("<II", 10, 0), PAST),
    "string longer than the file": (
        header(0, 1) + string(b"k") + struct.pack("<IQ", 8, 1 << 33) + b"x",
        PAST,
    ),
    "string of 2^64 - 1": (
        header(0, 1) + string(b"k") + struct.pack("<IQ", 8, (1 << 64) - 1) + b"x",
        PAST,
    ),
    "array of 2^40 u8, no data": (array(0, 1 << 40), PAST),
    "array of 5 million u8, no data": (array(0, 5_000_000), PAST),
    "array of 2^61 u64, which wraps": (array(10, 1 << 61), PAST),
    "array of 2^61 strings, which wraps": (array(8, 1 << 61), PAST),
    "array of 3 million empty strings": (array(8, 3 << 20, bytes(24 << 20)), "items"),
    "array of strings, one too long": (array(8, 2, string(b"a") + struct.pack("<Q", 9)), PAST),
    "array of an unknown type": (array(99, 1, bytes(20)), "unknown value type 99"),
    "arrays 5000 deep": (
        header(0, 1) + string(b"k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 5000,
        "nested more than",
    ),
    "arrays that multiply": (
        array(9, 1 << 20, struct.pack("<IQ", 9, 1 << 20) * (1 << 20)),
        "items|nested|past",
    ),
    "alignment 0": (aligned(4, 0), "must be a power of two, not 0"),
    "alignment 3": (aligned(4, 3), "must be a power of two, not 3"),
    "alignment 13": (aligned(4, 13), "must be a power of two, not 13"),
    "alignment -32": (aligned(5, 2**32 - 32), "must be a power of two"),
    "alignment is a float": (aligned(6, 32), "must be a power of two"),
    "alignment 256, offsets for 32": (aligned(4, 256, 128), "'u': offset 128 is not aligned"),
    "2^31 dimensions": (header(1, 0) + string(b"t") + struct.pack("<I", 1 << 31) + bytes(32), "4"),
    "5 dimensions": (one([1] * 5), "tensor 't' has 5 dimensions; ggml has 4"),
    "type 999": (one([32], 999), "unknown ggml type 999"),
    "type -1": (one([32], 2**32 - 1), "unknown ggml type"),
    "type withdrawn": (one([32], 31), "Q4_0_4_4 was withdrawn"),
    "offset past the end": (one([32], offset=1 << 40), "'t' ends at byte"),
    "offset -1": (one([32], offset=(1 << 64) - 1), "is not aligned"),
    "offset -32, which wraps": (one([32], offset=(1 << 64) - 32), "'t' ends at byte"),
    "offset misaligned": (one([32], offset=7, data=256), "offset 7 is not aligned to 32"),
    "two tensors on the same bytes": (
        two(line(b"t", [32], F32, 0), line(b"u", [32], F32, 0)),
        "'t' and 'u' overlap",
    ),
    "two tensors that overlap by part": (
        two(line(b"u", [32], F32, 96), line(b"t", [32], F32, 0)),
        "'t' and 'u' overlap",
    ),
    "tensor name twice": (
        two(line(b"t", [32], F32, 0), line(b"t", [32], F32, 128)),
        "'t' occurs twice",
    ),
    "data cut off": (one([1024]), "'t' ends at byte"),
    "data cut off by 1 byte": (one([32], data=127), "is truncated"),
    "no data at all": (one([32], data=0), "'t' ends at byte"),
    "dimensions overflow": (one([1 << 40, 1 << 40]), "overflows"),
    "dimension -1": (one([(1 << 64) - 1]), "overflows"),
    "dimensions that wrap to 0": (one([1 << 32, 1 << 32]), "overflows"),
    "bytes that wrap": (one([1 << 62]), "'t' ends at byte"),
    "row of part of a block": (
        one([33], Q4_0),
        "rows of 33 are not a multiple of Q4_0's block of 32",
    ),
    "blocks that cross rows": (one([16, 2], Q4_0), "rows of 16 are not a multiple"),
    "scalar of blocks": (one([], Q4_0), "rows of 1 are not a multiple"),
    "tensor name not UTF-8": (
        file(header(1, 0), line(b"\xff\xfe", [32], F32, 0)),
        "tensor name is not UTF-8",
    ),
    "tensor name is a path": (
        file(header(1, 0), line(b"../../etc/x", [32], F32, 0)),
        "leaves its folder",
    ),
    "tensor name holds NUL": (file(header(1, 0), line(b"a\0", [32], F32, 0)), "control char"),
    "tensor name of 5000 bytes": (file(header(1, 0), line(b"a" * 5000, [32], F32, 0)), "1 to 1024"),
    "tensor name of 0 bytes": (file(header(1, 0), line(b"", [32], F32, 0)), "1 to 1024"),
    "table cut off": (header(1, 0) + line(b"tensor", [32], F32, 0)[:-8], PAST),
    "split.count is text": (
        header(0, 1) + string(b"split.count") + struct.pack("<I", 8) + string(b"2"),
        "split.count must be a number",
    ),
    "split.count 2^64 - 1": (
        header(0, 1) + string(b"split.count") + struct.pack("<IQ", 10, (1 << 64) - 1),
        "their names must end in",
    ),
    "nothing inside": (header(0, 0), OPENED),
    "version 2": (file(header(1, 0, 2), line(b"t", [32], F32, 0)), OPENED),
    "tensor of 0 elements": (one([0, 32]), OPENED),
    "scalar": (one([]), OPENED),
    "last padding left out": (one([31], data=124), OPENED),
    "hole between tensors": (
        two(line(b"t", [8], F32, 0), line(b"u", [8], F32, 224)),
        OPENED,
    ),
    "alignment 1": (aligned(4, 1, 129), OPENED),
    "arrays in an array": (array(9, 2, struct.pack("<IQBIQ", 0, 1, 7, 8, 0)), OPENED),
    "value not UTF-8": (
        header(0, 1) + string(b"k") + struct.pack("<I", 8) + string(b"\xff"),
        OPENED,
    ),
}


@pytest.fixture(scope="module")
def outcomes(
    open_apart: Callable[[str, list[Path]], dict[str, Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("hostile")
    files = []
    for number, (content, _) in enumerate(CASES.values()):
        files.append(folder / f"case{number}.gguf")
        files[-1].write_bytes(content)
    return open_apart(READER, files)


@pytest.mark.parametrize("case", CASES)
def test_a_malformed_file_is_refused_at_once_with_its_offset_and_reason(
    case: str, outcomes: dict[str, Any]
) -> None:
    number = list(CASES).index(case)
    kind, message, lines = outcomes["results"][number]
    expected = CASES[case][1]
    assert lines < LINES
    if expected == OPENED:
        assert kind == OPENED, message
        return
    assert kind == "CheckpointError"
    where = r":" if case.startswith("split") else r"@offset \d+:"
    assert re.match(rf"case{number}\.gguf{where} ", message)
    assert any(part in message for part in expected.split("|")), message


def test_all_of_them_together_take_little_memory(outcomes: dict[str, Any]) -> None:
    assert outcomes["peak_mb"] < 100 and not outcomes["torch"]


def test_a_sparse_file_of_empty_strings_is_refused_at_once(
    open_apart: Callable[[str, list[Path]], dict[str, Any]], tmp_path: Path
) -> None:
    files = []
    for kind, count in ((8, 1 << 36), (0, 1 << 39), (9, 1 << 35)):
        files.append(tmp_path / f"sparse{kind}.gguf")
        files[-1].write_bytes(array(kind, count))
        os.truncate(files[-1], 1 << 40)
    outcome = open_apart(READER, files)
    for kind, message, lines in outcome["results"]:
        assert (kind, lines < LINES) == ("CheckpointError", True)
        assert "larger than 64 MiB" in message
    assert outcome["peak_mb"] < 100


def test_legal_but_unusual_values_are_read(tmp_path: Path) -> None:
    target = tmp_path / "m.gguf"
    target.write_bytes(CASES["arrays in an array"][0])
    numbers, words = open_gguf(target).metadata["k"]
    assert numbers.tolist() == [7] and words == []
    target.write_bytes(CASES["value not UTF-8"][0])
    value = open_gguf(target).metadata["k"]
    assert value.encode("utf-8", "surrogateescape") == b"\xff"
    target.write_bytes(array(7, 3, b"\0\1\xff"))
    assert open_gguf(target).metadata["k"].tolist() == [False, True, True]
    target.write_bytes(one([0, 32]))
    assert open_gguf(target).read("t").shape == (32, 0)
    target.write_bytes(one([]))
    assert open_gguf(target).read("t").item() == 0


def test_spoilt_bytes_are_an_error_or_harmless(
    spoil: Callable[[bytes, int], Iterator[bytes]], tmp_path: Path
) -> None:
    target = tmp_path / "model.gguf"
    writer = GGUFWriter(target, "llama")
    writer.add_block_count(2)
    writer.add_token_list(["a", "b", "▁c"])
    writer.add_token_scores([0.0, -1.0, -2.0])
    writer.add_custom_alignment(32)
    writer.add_tensor("token_embd.weight", np.ones((3, 8), np.float32))
    writer.add_tensor("blk.0.norm.weight", np.ones(8, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    good, refused = target.read_bytes(), 0
    for bad in spoil(good, 500):
        target.unlink()
        target.write_bytes(bad)
        try:
            container = open_gguf(target)
            for name in container.tensors:
                container.read(name)
        except CheckpointError:
            refused += 1
    assert 250 < refused < 500
    target.write_bytes(good)
    assert open_gguf(target).read("token_embd.weight").sum() == 24
