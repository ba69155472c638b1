"""Native libraries: C++ files compiled once for this CPU and cached in $OSTRO_CACHE.

A library runs with the rights of the process. It is loaded only if this user or root owns it, no
other user can write to it, and its bytes have the digest that was stored when it was compiled.
Otherwise it is compiled again. If the cache cannot be used, libraries are compiled to a temporary
folder of the process.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import hashlib
import logging
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from ostro.core.env import CACHE
from ostro.core.log import warn_once

HEADERS = Path(__file__).parent
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp")

FAILED: dict[str, str] = {}
"""Errors of libraries that could not be compiled or loaded: the process does not try again."""

logger = logging.getLogger(__name__)


def load(source: Path) -> ctypes.CDLL:
    """The compiled library of a C++ file. Raises ImportError, with the reason, if there is none."""
    name = str(source)
    try:
        name = library_name(source)
        if name not in FAILED:
            return ctypes.CDLL(str(find_or_compile(source, name)))
    except (ImportError, OSError) as error:
        if not FAILED:  # one line for all kernels
            logger.warning(
                "%s: the CPU uses kernels in plain torch, about 10 times slower with quantized "
                "weights; install g++ (`ostro doctor` checks it)",
                error,
            )
        FAILED[name] = str(error)
    raise ImportError(FAILED[name])


def library_name(source: Path) -> str:
    """The file name of a library: a hash of its source, the compiler and the CPU."""
    key = hashlib.sha256()
    headers = (HEADERS / "ostro.h", *sorted(source.parent.glob("*.h")))
    for part in (*(file.read_bytes() for file in (source, *headers)), machine()):
        key.update(part)
    return f"{source.parent.name}-{key.hexdigest()[:20]}.so"


def find_or_compile(source: Path, name: str) -> Path:
    """The path of an intact library, in the cache or else in the temporary folder."""
    try:
        return compile_once(source, open_cache() / name)
    except OSError as error:
        warn_once(
            logger,
            f"the cache of native kernels is not used: {error}. They are compiled for this process "
            "alone",
        )
    return compile_once(source, temporary_folder() / name)


def compile_once(source: Path, library: Path) -> Path:
    """Compile a library unless it exists and is intact."""
    # Processes that start together wait for one compilation instead of each running its own.
    with locked(library.parent):
        if not is_intact(library):
            for file in (library, digest_file(library)):
                file.unlink(missing_ok=True)
            build(source, library)
    return library


def open_cache() -> Path:
    """The folder of libraries, created if it is missing.

    Raises OSError if it cannot be created, or if other users can write to it.
    """
    folder = CACHE.read() / "native"
    folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not stat.S_ISDIR(folder.lstat().st_mode):
        raise NotADirectoryError(f"{folder} is not a folder")
    check_owner(folder)
    above = folder.resolve().parent
    for parent in (above, *above.parents):
        # Write permission for a folder above allows replacing this one, unless it is sticky.
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise PermissionError(f"{parent} is writable by all users; run chmod o-w {parent}")
    return folder


def check_owner(path: Path) -> None:
    """Raise PermissionError unless this user or root owns a path and no others can write to it."""
    found = path.lstat()
    if found.st_uid not in (0, os.geteuid()):
        raise PermissionError(f"{path} belongs to user {found.st_uid}; remove it")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{path} is writable by other users; run chmod go-w {path}")


def is_intact(library: Path) -> bool:
    """Return whether a library exists, is safe to load, and matches its stored digest."""
    digest = digest_file(library)
    try:
        for file in (library, digest):
            check_owner(file)
            if not stat.S_ISREG(file.lstat().st_mode):
                return False
        return digest.read_text() == digest_of(library)
    except (OSError, ValueError):
        return False


def digest_file(library: Path) -> Path:
    return library.with_suffix(".sha256")


def digest_of(library: Path) -> str:
    """The text of a digest file: SHA-256 and size in bytes."""
    content = library.read_bytes()
    return f"{hashlib.sha256(content).hexdigest()} {len(content)}\n"


def build(source: Path, library: Path) -> None:
    """Compile `source` to `library`, in a temporary folder beside it: no partial file appears."""
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        compiled = Path(folder) / "compiled.so"
        command = [*compiler(), *FLAGS, "-shared", "-fPIC", f"-I{HEADERS}"]
        command += [str(source), "-o", str(compiled)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line]
            why = (lines or ["no reason given"])[0].strip()
            raise ImportError(f"{compiler()[0]} could not compile {source.name}: {why}")
        compiled.chmod(0o700)  # not left to the umask: `check_owner` refuses group write
        digest = digest_file(compiled)
        digest.write_text(digest_of(compiled))
        digest.chmod(0o600)
        # The digest comes last: a library without one is not intact and is compiled again.
        compiled.replace(library)
        digest.replace(digest_file(library))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock of a folder; without effect on file systems that lack locks."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@cache
def temporary_folder() -> Path:
    """A private folder of this process, removed when it exits."""
    folder = tempfile.mkdtemp(prefix="ostro-native-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@cache
def compiler() -> list[str]:
    """The C++ compiler: $CXX, g++ or clang++. Raises ImportError without one."""
    if chosen := shlex.split(os.environ.get("CXX", "")):
        return chosen
    for name in ("g++", "clang++"):
        if found := shutil.which(name):
            return [found]
    raise ImportError("no C++ compiler is installed (g++ or clang++)")


@cache
def machine() -> bytes:
    """The compiler, flags and CPU that a compiled file depends on, besides its source."""
    try:
        version = subprocess.run([*compiler(), "--version"], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise ImportError(f"{compiler()[0]} does not run: {error}") from None
    facts = [platform.machine(), platform.processor()]
    if (info := Path("/proc/cpuinfo")).exists():
        lines = info.read_text().split("\n\n")[0].splitlines()
        facts += [line for line in lines if line.startswith(("model name", "flags", "Features"))]
    return version + " ".join([*FLAGS, *facts]).encode()
