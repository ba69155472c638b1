"""Native kernels: C++ files beside their Python wrappers, compiled for this kind of CPU.

A kernel is a file `native.cpp` with functions of addresses and sizes. `ostro.h` has the shared
vector and element types; a kernel may have its own headers. The wrapper checks the arguments with a
`Signature` and calls the functions through ctypes, which releases the GIL. The files do not include
torch headers, so that each compiles in seconds. Where the wheel has no library for the CPU and
there is no C++ compiler, the import of a wrapper raises ImportError, and `Op.select` tries the next
kernel.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass
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
    """The kernel calls of this thread while it captures a CPU graph; None if it does not."""

    calls: list[tuple[Function, tuple[Any, ...]]] | None = None


# A capture records other operations through PyTorch's dispatcher, which ctypes calls bypass. Each
# thread has its own list: kernels of other threads are not part of the graph.
CAPTURE = Capture()


@dataclass(frozen=True)
class NativeKernel:
    """A C++ function of `EXPORT`: `run` calls it, `words` is its address with the arguments packed
    as an array of 64-bit words.

    `kinds` are the ctypes of the arguments.
    """

    run: Function
    words: Any
    kinds: tuple[Any, ...]

    def __call__(self, *args: Any) -> None:
        if CAPTURE.calls is not None:
            CAPTURE.calls.append((self, args))
        self.run(*args)


def functions(library: ctypes.CDLL, name: str, *kinds: Any) -> dict[torch.dtype, Function]:
    """The functions of `EXPORT(name)` by element type; `kinds` are their argument types.

    Raises ImportError if the library lacks one.
    """
    prototype = ctypes.CFUNCTYPE(None, *kinds)
    found: dict[torch.dtype, Function] = {}
    for dtype, suffix in SUFFIXES.items():
        address = exported(library, f"{name}_{suffix}_address")
        address.restype = ctypes.c_void_p
        words = exported(library, f"{name}_{suffix}_words")
        found[dtype] = NativeKernel(prototype(address()), words, kinds)
    return found


def function(library: ctypes.CDLL, name: str, *kinds: Any, result: Any = None) -> Function:
    """An `extern "C"` function for one element type; `result` is its return type.

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
    """Wrap a function so that its calls are recorded while the calling thread captures a graph."""

    def call(*args: Any) -> Any:
        if CAPTURE.calls is not None:
            CAPTURE.calls.append((function, args))
        return function(*args)

    return call
