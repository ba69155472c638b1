"""Compiled kernels: kept, verified, refused where others could have written them, compiled anew."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

import pytest
import torch

from ostro.core import native
from ostro.core.log import warn_once
from ostro.core.native import library
from ostro.core.ops import Op, Target, rms_norm

TRIPLE = """
extern "C" void each(const float* x, long n, float* y) {
    for (long i = 0; i < n; i++) y[i] = 3 * x[i];
}
"""
PLANTED = """
#include <cstdio>
#include <cstdlib>
__attribute__((constructor)) static void run() {
    if (FILE* file = fopen(getenv("MARKER"), "w")) fclose(file);
}
"""
NOBODY = 65534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture(scope="module", autouse=True)
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that leaves a mark when it is loaded."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "planted.cpp").write_text(PLANTED)
    made = folder / "planted.so"
    command = [*library.compiler().command, "-shared", "-fPIC", folder / "planted.cpp", "-o", made]
    subprocess.run(command, check=True)
    return made


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "triple").mkdir()
    written = tmp_path / "triple/native.cpp"
    written.write_text(TRIPLE)
    return written


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of libraries, not made yet; the temporary folder of the process is another one."""
    monkeypatch.setenv("OSTRO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MARKER", str(tmp_path / "marker"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    library.temporary_folder.cache_clear()
    warn_once.cache_clear()
    yield tmp_path / "cache/native"
    library.temporary_folder.cache_clear()


def triple(source: Path) -> list[float]:
    """What the library of `source` computes."""
    kinds = native.ADDRESS, native.INT, native.ADDRESS
    each = native.function(native.load(source), "each", *kinds)
    x, y = torch.arange(3.0), torch.empty(3)
    each(x.data_ptr(), 3, y.data_ptr())
    return y.tolist()


FORK = Lock()
"""Held during a fork: filelock, if another test has imported it, refuses concurrent ones."""


def in_child(call: Callable[[], object]) -> tuple[int, str]:
    """The exit status of a process that makes a call, which may crash it, and what it returned."""
    reader, writer = os.pipe()
    with FORK:
        child = os.fork()
    if not child:
        try:
            os.write(writer, repr(call()).encode())
        except BaseException as error:
            os.write(writer, repr(error).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


def runs(source: Path) -> None:
    """The library is loaded and right, in a process of its own."""
    assert in_child(lambda: triple(source)) == (0, "[0.0, 3.0, 6.0]")


def compiled(source: Path, cache: Path) -> Path:
    """The one library in the cache, after it was compiled."""
    runs(source)
    (made,) = cache.glob("*.so")
    return made


def test_made_for_this_user_alone(source: Path, cache: Path) -> None:
    before = os.umask(0)
    try:
        made = compiled(source, cache)
    finally:
        os.umask(before)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert not made.stat().st_mode & 0o077
    digest, size = made.with_suffix(".sha256").read_text().split()
    assert digest == hashlib.sha256(made.read_bytes()).hexdigest()
    assert int(size) == made.stat().st_size
    assert len(list(cache.iterdir())) == 2, "nothing is left over"


def test_compiled_once(source: Path, cache: Path) -> None:
    made = compiled(source, cache)
    before = made.stat().st_mtime_ns
    runs(source)
    assert made.stat().st_mtime_ns == before
    source.write_text(TRIPLE + "// another source")
    runs(source)
    assert len(list(cache.glob("*.so"))) == 2


def plant(made: Path, planted: Path, *, owner: int | None = None, mode: int = 0o700) -> None:
    """Put the planted library in the place of one, with a digest that is right."""
    made.unlink()
    shutil.copy(planted, made)
    made.with_suffix(".sha256").write_text(library.digest_of(made))
    if owner is not None:
        for file in (made, made.with_suffix(".sha256")):
            os.chown(file, owner, owner)
    made.chmod(mode)


UNSAFE: dict[str, Callable[[Path], object]] = {
    "a folder that all may write to": lambda made: made.parent.chmod(0o777),
    "a folder that a group may write to": lambda made: made.parent.chmod(0o770),
    "a folder above that all may write to": lambda made: made.parent.parent.chmod(0o777),
    "a file that all may write to": lambda made: made.chmod(0o777),
    "a digest that all may write to": lambda made: made.with_suffix(".sha256").chmod(0o666),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_a_library_that_others_can_write_is_not_loaded(
    name: str, source: Path, cache: Path, planted: Path, tmp_path: Path
) -> None:
    made = compiled(source, cache)
    plant(made, planted)
    UNSAFE[name](made)
    runs(source)
    assert not (tmp_path / "marker").exists()


@AS_ROOT
@pytest.mark.parametrize("whose", ["folder", "file"])
def test_a_library_of_another_user_is_not_loaded(
    whose: str, source: Path, cache: Path, planted: Path, tmp_path: Path
) -> None:
    made = compiled(source, cache)
    plant(made, planted, owner=NOBODY if whose == "file" else None)
    if whose == "folder":
        os.chown(cache, NOBODY, NOBODY)
    runs(source)
    assert not (tmp_path / "marker").exists()


def test_a_link_is_not_followed(source: Path, cache: Path, planted: Path, tmp_path: Path) -> None:
    made = compiled(source, cache)
    plant(made, planted)
    real = made.rename(tmp_path / "elsewhere.so")
    made.symlink_to(real)
    runs(source)
    assert not (tmp_path / "marker").exists()
    shutil.move(cache, tmp_path / "folder")
    cache.symlink_to(tmp_path / "folder")
    runs(source)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "random bytes": lambda made: made.write_bytes(os.urandom(5000)),
    "empty": lambda made: made.write_bytes(b""),
    "cut": lambda made: os.truncate(made, made.stat().st_size * 6 // 10),
    "one bit": lambda made: made.write_bytes(
        bytes([made.read_bytes()[0] ^ 1]) + made.read_bytes()[1:]
    ),
    "longer": lambda made: made.write_bytes(made.read_bytes() + b"\0"),
    "gone": lambda made: made.unlink(),
    "no digest": lambda made: made.with_suffix(".sha256").unlink(),
    "an empty digest": lambda made: made.with_suffix(".sha256").write_text(""),
    "a digest of bytes": lambda made: made.with_suffix(".sha256").write_bytes(b"\xff\xfe"),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_library_is_compiled_anew(name: str, source: Path, cache: Path) -> None:
    made = compiled(source, cache)
    whole = made.read_bytes()
    DAMAGES[name](made)
    runs(source)
    assert made.read_bytes() == whole, "mended where it lies"


def test_another_library_in_its_place(source: Path, cache: Path, planted: Path) -> None:
    made = compiled(source, cache)
    shutil.copy(planted, made)
    runs(source)


def test_a_missing_function_is_an_import_error(source: Path, cache: Path, planted: Path) -> None:
    plant(compiled(source, cache), planted)  # ours, and intact
    status, said = in_child(lambda: native.functions(native.load(source), "each"))
    assert status == 0 and said.startswith("ImportError(") and "each_f32_address" in said
    status, said = in_child(lambda: native.function(native.load(source), "nothing"))
    assert status == 0 and said.startswith("ImportError(") and "nothing" in said


@pytest.mark.parametrize(
    "kind", ["a file", "a file above", "not to be made", "a folder in its place"]
)
def test_without_a_cache_the_process_compiles_for_itself(
    kind: str,
    source: Path,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if kind == "a file":
        cache.parent.mkdir()
        cache.write_text("")
    if kind == "a file above":
        cache.parent.write_text("")
    if kind == "not to be made":
        monkeypatch.setenv("OSTRO_CACHE", "/proc/ostro")
    if kind == "a folder in its place":
        made = compiled(source, cache)
        made.unlink()
        made.mkdir()
    assert triple(source) == [0.0, 3.0, 6.0]
    source.write_text(TRIPLE + "// another source")
    assert triple(source) == [0.0, 3.0, 6.0]
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1 and "cache of native kernels is not used" in warnings[0]
    made_here = list((tmp_path / "temporary").glob("ostro-native-*/*.so"))
    # A folder in the place of one library leaves the cache usable for the other.
    assert len(made_here) == (1 if kind == "a folder in its place" else 2)
    assert stat.S_IMODE(made_here[0].parent.stat().st_mode) == 0o700


@AS_ROOT
@pytest.mark.parametrize("filled", [True, False], ids=["filled", "empty"])
def test_a_read_only_cache(filled: bool, source: Path, cache: Path, tmp_path: Path) -> None:
    """Libraries of root are taken; others are compiled for the process."""
    if filled:
        made = compiled(source, cache)
        made.chmod(0o755)
        made.with_suffix(".sha256").chmod(0o644)
    else:
        cache.mkdir(parents=True)
    cache.chmod(0o755)
    (tmp_path / "temporary").chmod(0o777)
    for folder in tmp_path.parents:
        if not folder.stat().st_mode & stat.S_IXOTH:
            pytest.skip(f"{folder} is closed to others")

    def as_nobody() -> tuple[list[float], int]:
        os.setuid(NOBODY)
        return triple(source), len(list((tmp_path / "temporary").iterdir()))

    assert in_child(as_nobody) == (0, repr(([0.0, 3.0, 6.0], int(not filled))))


def test_without_any_folder_the_next_kernel_is_taken(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.parent.write_text("")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    name = "ostro.core.ops.rms_norm.native"
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(library, "FAILED", {})
    choice = Op(rms_norm.KERNELS).select(Target(device=torch.device("cpu"), dtype=torch.float32))
    assert choice.kernel.name == "naive" and "nowhere" in choice.reason


def test_the_slower_kernels_are_named_once(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(library, "FAILED", {})
    monkeypatch.setattr(library, "compiler", library.compiler.__wrapped__)
    other = tmp_path / "other.cpp"
    other.write_text(TRIPLE)
    for path in (source, source, other):
        with pytest.raises(ImportError, match="no C"):
            library.load(path)
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("no C++ compiler is installed") and "10 times slower" in line


@pytest.mark.process
def test_processes_that_start_together(source: Path, cache: Path) -> None:
    """One compiles, the others wait; nothing is left over."""
    begin = time.time() + 0.5

    def start() -> list[float]:
        time.sleep(max(0.0, begin - time.time()))
        return triple(source)

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: in_child(start), range(4)))
    assert answers == [(0, "[0.0, 3.0, 6.0]")] * 4
    assert sorted(file.suffix for file in cache.iterdir()) == [".sha256", ".so"]
