"""Native kernels: C++ beside its Python wrapper, compiled once for this CPU.

A kernel is a file `native.cpp` of functions over addresses and sizes, with `ostro.h` for what all
share, and headers of its own beside it; its wrapper calls them through ctypes, which lets go of the
GIL. No torch headers, so a file takes seconds to compile; the result is kept in $OSTRO_CACHE,
`~/.cache/ostro`. Without a C++ compiler the wrapper cannot be imported, and the chooser takes the
next kernel.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ostro.core.env import CACHE
from ostro.core.native.signature import DTYPES, Arg, Signature

__all__ = [
    "ADDRESS",
    "DTYPES",
    "FLOAT",
    "INT",
    "Arg",
    "Signature",
    "function",
    "functions",
    "load",
]

HEADERS = Path(__file__).parent
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp")
ADDRESS, INT, FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
SUFFIXES = dict(zip(DTYPES, ("f32", "bf16", "f16"), strict=True))

Function = Callable[..., Any]


class Noting(threading.local):
    """Where this thread's calls are noted while they are recorded (`core.engine.tape`)."""

    calls: list[tuple[Function, tuple[Any, ...]]] | None = None


NOTING = Noting()

FAILED: dict[Path, str] = {}
"""What would not compile, and why: it is not tried again by this process."""


def load(source: Path) -> ctypes.CDLL:
    """The compiled library of a C++ file. Raises ImportError, with the reason, if there is none."""
    key = hashlib.sha256()
    headers = (HEADERS / "ostro.h", *sorted(source.parent.glob("*.h")))
    for part in (*(file.read_bytes() for file in (source, *headers)), machine()):
        key.update(part)
    place = cache_folder() / f"{source.parent.name}-{key.hexdigest()[:20]}.so"
    if place in FAILED:
        raise ImportError(FAILED[place])
    if not place.exists():
        try:
            build(source, place)
        except ImportError as error:
            FAILED[place] = str(error)
            raise
    return ctypes.CDLL(str(place))


def functions(library: ctypes.CDLL, name: str, *kinds: Any) -> dict[torch.dtype, Function]:
    """What `EXPORT(name)` made, by element type: functions of arguments of `kinds`."""
    prototype = ctypes.CFUNCTYPE(None, *kinds)
    found: dict[torch.dtype, Function] = {}
    for dtype, suffix in SUFFIXES.items():
        address = getattr(library, f"{name}_{suffix}_address")
        address.restype = ctypes.c_void_p
        found[dtype] = noted(prototype(address()))
    return found


def function(library: ctypes.CDLL, name: str, *kinds: Any, result: Any = None) -> Function:
    """A function that is there for one type alone; `result` is the type of what it returns."""
    return noted(ctypes.CFUNCTYPE(result, *kinds)((name, library)))


def noted(function: Function) -> Function:
    """The function, its calls noted where a thread records them."""

    def call(*args: Any) -> Any:
        if NOTING.calls is not None:
            NOTING.calls.append((function, args))
        return function(*args)

    return call


def build(source: Path, place: Path) -> None:
    """Compile `source` to `place`, beside it first: two processes may do this at once."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        made = Path(folder) / "made.so"
        command = [*compiler(), *FLAGS, "-shared", "-fPIC", f"-I{HEADERS}"]
        command += [str(source), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line]
            why = (lines or ["no reason given"])[0].strip()
            raise ImportError(f"{compiler()[0]} could not compile {source.name}: {why}")
        made.replace(place)


@cache
def compiler() -> list[str]:
    """The C++ compiler: $CXX, g++ or clang++. Raises ImportError without one."""
    if chosen := shlex.split(os.environ.get("CXX", "")):
        return chosen
    for name in ("g++", "clang++"):
        if found := shutil.which(name):
            return [found]
    raise ImportError("no C++ compiler (g++ or clang++) is installed")


@cache
def machine() -> bytes:
    """What a compiled file depends on beside its source: compiler, flags, CPU."""
    try:
        version = subprocess.run([*compiler(), "--version"], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise ImportError(f"{compiler()[0]} does not run: {error}") from None
    facts = [platform.machine(), platform.processor()]
    if (info := Path("/proc/cpuinfo")).exists():
        told = info.read_text().split("\n\n")[0].splitlines()
        facts += [line for line in told if line.startswith(("model name", "flags", "Features"))]
    return version + " ".join([*FLAGS, *facts]).encode()


def cache_folder() -> Path:
    return CACHE.read() / "native"
