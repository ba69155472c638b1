"""Malformed safetensors files: each is refused at once with file and reason, or is legal."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from ostro.core.errors import CheckpointError, ModelNotFound
from ostro.plugins.checkpoints.safetensors.reader import open_safetensors

LINES = 5000
"""The limit on the lines of Python for one file; most take a few hundred."""
READER = "ostro.plugins.checkpoints.safetensors.reader:open_safetensors"
OPENED = "opened"


def make(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def tensor(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}


ENTRY = b'{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'

CASES: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "is empty; download it again"),
    "4 bytes": (b"{}  ", "4 bytes are too few for a safetensors file; download it again"),
    "7 bytes": (b"1234567", "too few"),
    "header length 2^63": (struct.pack("<Q", 1 << 63) + b"{}", "the limit is 100000000"),
    "header longer than the file": (struct.pack("<Q", 1000) + b"{}", "is truncated"),
    "header over 100 MB": (struct.pack("<Q", 100_000_001) + b"{}", "the limit is 100000000"),
    "header length 0": (make(b""), "must begin with '{'"),
    "not JSON": (make(b"{abc"), "not JSON: line 1 column 2"),
    "not UTF-8": (make(b'{"\xff":1}'), "not JSON"),
    "not an object": (make(b"[]"), "must begin with '{'"),
    "leading space": (make(b" {}"), "must begin with '{'"),
    "trailing garbage": (make(b"{} x"), "Extra data"),
    "a number of 5000 digits": (make(b'{"a":' + b"9" * 5000 + b"}"), "not JSON"),
    "unknown dtype": (make({"a": tensor(dtype="Q4")}, bytes(8)), "'a': unknown dtype 'Q4'"),
    "dtype is a list": (make({"a": tensor(dtype=["F32"])}, bytes(8)), "'a': unknown dtype"),
    "entry is no object": (make({"a": 1}), "'a': needs dtype"),
    "entry without shape": (make({"a": {"dtype": "F32"}}), "'a': needs dtype"),
    "offset beyond the end": (
        make({"a": tensor(data_offsets=[0, 800], shape=[200])}, bytes(8)),
        "'a': ends at byte",
    ),
    "negative offset": (make({"a": tensor(data_offsets=[-8, 0])}, bytes(8)), "natural numbers"),
    "fractional offset": (make({"a": tensor(data_offsets=[0, 8.0])}, bytes(8)), "natural numbers"),
    "three offsets": (make({"a": tensor(data_offsets=[0, 8, 8])}, bytes(8)), "natural numbers"),
    "boolean dimension": (make({"a": tensor(shape=[True, 2])}, bytes(8)), "natural numbers"),
    "end before begin": (make({"a": tensor(data_offsets=[8, 0])}, bytes(8)), "'a': F32 [2] takes"),
    "shape does not match": (make({"a": tensor(shape=[3])}, bytes(8)), "takes 12 bytes"),
    "shape overflows": (make({"a": tensor(shape=[1 << 62, 1 << 62])}, bytes(8)), "overflows"),
    "shape overflows beside 0": (
        make({"a": tensor(shape=[0, 1 << 62, 1 << 62], data_offsets=[0, 0])}),
        "overflows",
    ),
    "1000 dimensions": (make({"a": tensor(shape=[1] * 1000)}, bytes(4)), "1000 dimensions"),
    "part of a byte": (
        make({"a": tensor(dtype="F4", shape=[2, 3], data_offsets=[0, 3])}, bytes(3)),
        "do not fill whole bytes",
    ),
    "overlap": (make({"a": tensor(), "b": tensor()}, bytes(8)), "'b' overlaps"),
    "hole": (
        make({"a": tensor(), "b": tensor(data_offsets=[16, 24])}, bytes(24)),
        "'b' follows a gap",
    ),
    "trailing bytes": (make({"a": tensor()}, bytes(16)), "8 bytes follow"),
    "truncated data": (make({"a": tensor()}, bytes(4)), "'a': ends at byte"),
    "metadata is not strings": (
        make({"__metadata__": {"a": 1}, "a": tensor()}, bytes(8)),
        "__metadata__ must map",
    ),
    "metadata is a list": (make({"__metadata__": []}), "__metadata__ must map"),
    "name repeated": (make(b'{"a":' + ENTRY + b',"a":' + ENTRY + b"}", bytes(8)), "'a' occurs"),
    "field repeated": (make(b'{"a":{"dtype":"F32","dtype":"F16"}}'), "'dtype' occurs"),
    "deep JSON": (make(b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}"), "natural|deep|needs"),
    "very deep JSON": (make(b'{"a":' + b"[" * 10**6), "deep|not JSON"),
    "name is empty": (make({"": tensor()}, bytes(8)), "its name must have"),
    "name is long": (make({"a" * 5000: tensor()}, bytes(8)), "its name must have"),
    "name holds NUL": (make({"a\0b": tensor()}, bytes(8)), "control characters"),
    "name is half a surrogate": (make(b'{"\\ud800":' + ENTRY + b"}", bytes(8)), "control char"),
    "name is a path": (make({"../../etc/x": tensor()}, bytes(8)), "leaves its folder"),
    "NaN and infinity": (
        make({"a": tensor()}, struct.pack("<ff", float("nan"), float("inf"))),
        OPENED,
    ),
    "no tensors": (make(b"{}"), OPENED),
    "padded header": (make(b"{}      "), OPENED),
    "unknown field": (make({"a": tensor(extra=1)}, bytes(8)), OPENED),
}


@pytest.fixture(scope="module")
def outcomes(
    open_apart: Callable[[str, list[Path]], dict[str, Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("hostile")
    files = []
    for number, (content, _) in enumerate(CASES.values()):
        files.append(folder / f"case{number}.safetensors")
        files[-1].write_bytes(content)
    return open_apart(READER, files)


@pytest.mark.parametrize("case", CASES)
def test_a_malformed_file_is_refused_at_once_with_its_reason(
    case: str, outcomes: dict[str, Any]
) -> None:
    number = list(CASES).index(case)
    kind, message, lines = outcomes["results"][number]
    expected = CASES[case][1]
    assert lines < LINES
    if expected == OPENED:
        assert kind == OPENED
        return
    assert kind == "CheckpointError"
    assert message.startswith(f"case{number}.safetensors: ")
    assert any(part in message for part in expected.split("|")), message


def test_all_of_them_together_take_little_memory(outcomes: dict[str, Any]) -> None:
    assert outcomes["peak_mb"] < 100 and not outcomes["torch"]


def test_spoilt_bytes_are_an_error_or_harmless(
    spoil: Callable[[bytes, int], Iterator[bytes]], tmp_path: Path
) -> None:
    good = save(
        {
            "model.embed.weight": torch.randn(5, 4),
            "model.norm.weight": torch.ones(4).bfloat16(),
            "model.mask": torch.tensor([True, False]),
            "scale": torch.tensor(2.0),
        },
        metadata={"format": "pt"},
    )
    file = tmp_path / "model.safetensors"
    refused = 0
    for bad in spoil(good, 500):
        file.unlink(missing_ok=True)
        file.write_bytes(bad)
        try:
            container = open_safetensors(file)
            for name, info in container.tensors.items():
                assert container.read(name).shape == info.shape
        except CheckpointError:
            refused += 1
    assert 250 < refused < 500
    file.unlink()
    with pytest.raises(ModelNotFound):
        open_safetensors(file)
    file.write_bytes(good)
    assert open_safetensors(file).read("scale").item() == 2
