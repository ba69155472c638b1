"""Kernel calls with fixed arguments, one after the other, as one call of C++.

ctypes releases Python's lock for each call and acquires it again afterwards, for which other
threads make it wait up to the switch interval. `KernelCalls` does so once.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ostro.core.native import ADDRESS, FLOAT, INT, Function, NativeKernel, function, load


class Call(ctypes.Structure):
    """The struct of replay.cpp."""

    _fields_ = (("run", ADDRESS), ("words", ADDRESS))


@cache
def replay() -> Function:
    """Compile replay.cpp. Raises ImportError if that fails."""
    library = load(Path(__file__).with_name("replay.cpp"))
    return function(library, "replay", ctypes.POINTER(Call), INT)


class KernelCalls:
    """The same calls each time. Raises ImportError without a compiler."""

    def __init__(self, calls: Sequence[tuple[NativeKernel, tuple[Any, ...]]]) -> None:
        self.replay, self.count = replay(), len(calls)
        # The words hold addresses of arguments.
        self.retained = calls
        self.words = [
            (ctypes.c_int64 * len(args))(*map(word, kernel.kinds, args)) for kernel, args in calls
        ]
        self.table = (Call * self.count)(
            *(
                Call(ctypes.cast(kernel.words, ADDRESS), ctypes.addressof(words))
                for (kernel, _), words in zip(calls, self.words, strict=True)
            )
        )

    def __call__(self) -> None:
        self.replay(self.table, self.count)


def word(kind: Any, argument: Any) -> int:
    """An argument of a kernel as a 64-bit word."""
    if kind is FLOAT:
        return int.from_bytes(struct.pack("<f", argument), "little")
    if argument is None or isinstance(argument, int):
        return int(argument or 0)
    return ctypes.cast(argument, ADDRESS).value or 0  # bytes, or a pointer to a struct
