"""Arrays that one process writes to shared memory and another reads."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from ostro.core.errors import EngineDied
from ostro.core.messages import arrays
from ostro.core.messages.arrays import Array


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of the machine's shared memory."""
    folder = tmp_path / "shared"
    folder.mkdir()
    monkeypatch.setattr(arrays, "SHARED", folder)
    return folder


def test_an_array_is_read_once(shared: Path) -> None:
    values = np.arange(1 << 20, dtype=np.float32)
    array = Array.of(values).share()
    assert [str(path) for path in shared.iterdir()] == [array.file]
    assert np.array_equal(array.numpy(), values)
    assert not list(shared.iterdir())
    with pytest.raises(EngineDied, match="cannot be read"):
        array.read()


@pytest.mark.parametrize("name", ["ostro-1-a", "shared/other", "shared/x/ostro-1-a"])
def test_no_other_file_is_read_or_removed(shared: Path, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"1234")
    digest = hashlib.blake2b(b"1234", digest_size=16).digest()
    array = Array(dtype="<f4", shape=(1,), file=str(file), digest=digest)
    with pytest.raises(EngineDied, match="is not the file of a shared array"):
        array.read()
    assert file.read_bytes() == b"1234"


def test_other_contents_are_refused(shared: Path) -> None:
    array = Array.of(np.zeros(1 << 20, np.float32)).share()
    Path(array.file).write_bytes(bytes(1 << 22)[:-1] + b"x")
    with pytest.raises(EngineDied, match="other contents than were written"):
        array.read()
