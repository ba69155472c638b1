"""Native kernels: C++ files beside their Python wrappers, compiled once for this CPU.

A kernel is a file `native.cpp` of functions over addresses and sizes; `ostro.h` has the vectors and
element types that all share, and a kernel may have headers of its own. Its wrapper checks the
arguments with a `Signature` and calls the functions through ctypes, which releases the GIL. The
files include no torch headers, so that one compiles in seconds. Without a C++ compiler the import
of a wrapper raises ImportError, and `Op.select` takes the next kernel.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import torch

from ostro.core.native.library import load
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

ADDRESS, INT, FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
SUFFIXES = dict(zip(DTYPES, ("f32", "bf16", "f16"), strict=True))

Function = Callable[..., Any]


class Capture(threading.local):
    """The calls of kernels in this thread while it captures a CPU graph; None at other times."""

    calls: list[tuple[Function, tuple[Any, ...]]] | None = None


# PyTorch's dispatcher, which shows a capture all other operations, never sees a call through
# ctypes. Each thread has its own list: kernels of other threads belong to no graph.
CAPTURE = Capture()


def functions(library: ctypes.CDLL, name: str, *kinds: Any) -> dict[torch.dtype, Function]:
    """The functions of `EXPORT(name)` by element type; `kinds` are the types of their arguments.

    Raises ImportError if the library has none.
    """
    prototype = ctypes.CFUNCTYPE(None, *kinds)
    found: dict[torch.dtype, Function] = {}
    for dtype, suffix in SUFFIXES.items():
        address = exported(library, f"{name}_{suffix}_address")
        address.restype = ctypes.c_void_p
        found[dtype] = capturable(prototype(address()))
    return found


def function(library: ctypes.CDLL, name: str, *kinds: Any, result: Any = None) -> Function:
    """A function that exists for one element type; `result` is the type of its return value.

    Raises ImportError if the library lacks it.
    """
    exported(library, name)
    return capturable(ctypes.CFUNCTYPE(result, *kinds)((name, library)))


def exported(library: ctypes.CDLL, name: str) -> Any:
    try:
        return getattr(library, name)
    except AttributeError as error:
        raise ImportError(f"a native library lacks a function: {error}") from None


def capturable(function: Function) -> Function:
    """The function; its calls are added to the capture of the calling thread."""

    def call(*args: Any) -> Any:
        if CAPTURE.calls is not None:
            CAPTURE.calls.append((function, args))
        return function(*args)

    return call
