"""Native libraries: C++ files, prebuilt in the wheel, or compiled once and cached in $OSTRO_CACHE.

A prebuilt library is in the package, under a name that contains a hash of its source: an edited
source is compiled, and so are kernels of plugins and of a source tree.

A library runs with the rights of the process. A cached one is loaded only if this user or root owns
it, no other user can write to it, and its bytes have the digest that was stored when it was
compiled. Otherwise it is compiled again. If the cache cannot be used, libraries are compiled to a
temporary folder of the process.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import hashlib
import logging
import os
import platform
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from ostro.core.cpu import core_count
from ostro.core.env import CACHE
from ostro.core.log import warn_once
from ostro.core.native.build import NATIVE, Compiler, Variant, library_name
from ostro.core.native.variants import cpu_flags, cpu_info, this_variant

PREBUILT = Path(__file__).parent / "prebuilt"
"""The libraries of the wheel, one folder per variant."""

FAILED: dict[str, str] = {}
"""Errors of libraries that could not be compiled or loaded: the process does not try again."""

logger = logging.getLogger(__name__)


def load(source: Path) -> ctypes.CDLL:
    """The library of a C++ file for this CPU.

    Raises ImportError, with the reason, if there is none, and UsageError if OSTRO_CPU is wrong.
    """
    variant, reason = this_variant()
    if variant is None:
        raise ImportError(reason)
    name = str(source)
    try:
        name = library_name(source, variant)
        if name not in FAILED:
            provide_openmp()
            library = find_prebuilt(name, variant) or find_or_compile(source, variant)
            return ctypes.CDLL(str(library))
    except (ImportError, OSError) as error:
        if not FAILED:  # one line for all kernels
            logger.warning(
                "%s: the CPU uses kernels in plain torch, about 10 times slower with quantized "
                "weights; install g++ (`ostro doctor` checks it)",
                error,
            )
        FAILED[name] = str(error)
    raise ImportError(FAILED[name])


def find_prebuilt(name: str, variant: Variant) -> Path | None:
    """The library of this name in the wheel, if it has it."""
    library = PREBUILT / variant.name / name
    return library if library.is_file() else None


@cache
def provide_openmp() -> None:
    """Load GNU's OpenMP runtime unless the process has it: libraries use torch's, if it is there.

    Two runtimes would each have a pool of threads.
    """
    if not hasattr(ctypes.CDLL(None), "GOMP_parallel"):
        with suppress(OSError):
            ctypes.CDLL("libgomp.so.1", mode=ctypes.RTLD_GLOBAL)


def find_or_compile(source: Path, variant: Variant) -> Path:
    """The path of an intact library, in the cache or else in the temporary folder."""
    name = cached_name(source, variant)
    try:
        folder = open_cache()
        # Processes that start together wait for one compilation instead of each running its own.
        with locked(folder):
            return ensure(source, variant, folder / name)
    except OSError as error:
        warn_once(
            logger,
            f"the cache of native kernels is not used: {error}. They are compiled for this process "
            "alone",
        )
    return ensure(source, variant, temporary_folder() / name)


def compile_package(package: Path, report: Callable[[str], None]) -> None:
    """Compile all libraries that a package needs on this CPU and does not have, side by side.

    `report` receives what is compiled. Raises ImportError without a compiler, OSError without a
    cache, and UsageError if OSTRO_CPU is wrong.
    """
    variant, _ = this_variant()
    if variant is None:
        return
    # Not package.rglob: in a source tree the folders of the package are links.
    sources = [source for folder in package.iterdir() for source in folder.rglob("*.cpp")]
    missing = [s for s in sources if not find_prebuilt(library_name(s, variant), variant)]
    folder = open_cache()
    missing.sort(key=lambda source: source.stat().st_size, reverse=True)  # the longest first
    libraries = {folder / cached_name(source, variant): source for source in missing}
    with locked(folder), ThreadPoolExecutor(core_count()) as pool:
        libraries = {to: source for to, source in libraries.items() if not is_intact(to)}
        if libraries:
            report(f"compiling {len(libraries)} native kernels for {variant.name}, once")
        list(pool.map(lambda to: ensure(libraries[to], variant, to), libraries))


def cached_name(source: Path, variant: Variant) -> str:
    """The file name of a compiled library: a hash of its source, the flags and the compiler.

    Raises ImportError without a compiler.
    """
    facts = [library_name(source, variant), compiler().version]
    if variant == NATIVE:  # which instructions these are depends on the CPU
        facts += [platform.machine(), cpu_info().get("model name", ""), *sorted(cpu_flags())]
    key = hashlib.sha256(" ".join(facts).encode())
    return f"{source.parent.name}-{key.hexdigest()[:20]}.so"


def ensure(source: Path, variant: Variant, library: Path) -> Path:
    """Compile a library unless it exists and is intact."""
    if not is_intact(library):
        for file in (library, digest_file(library)):
            file.unlink(missing_ok=True)
        build(source, variant, library)
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


def build(source: Path, variant: Variant, library: Path) -> None:
    """Compile `source` to `library`, in a temporary folder beside it: no partial file appears."""
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        compiled = Path(folder) / "compiled.so"
        compiler().compile(source, variant, compiled)
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
def compiler() -> Compiler:
    """The compiler of this machine. Raises ImportError without one."""
    return Compiler.find()
