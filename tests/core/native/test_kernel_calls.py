"""Kernel calls as one call of C++: in order, with the same arguments and results."""

from __future__ import annotations

import ctypes
import struct

import pytest
import torch
from torch import Tensor

from ostro.core.native import ADDRESS, FLOAT, INT, NativeKernel
from ostro.core.native.cpu_graph import record
from ostro.core.native.kernel_calls import KernelCalls, word
from ostro.core.ops.rms_norm.native import rms_norm


class Pair(ctypes.Structure):
    _fields_ = (("first", INT), ("second", INT))


PAIR = Pair(1, 2)
BYTES = b"four bytes"


@pytest.mark.parametrize(
    ("kind", "argument", "expected"),
    [
        (INT, -3, -3),
        (INT, True, 1),
        (ADDRESS, 2**47, 2**47),
        (ADDRESS, None, 0),
        (FLOAT, 1e-6, struct.unpack("<i", struct.pack("<f", 1e-6))[0]),
        (ADDRESS, BYTES, ctypes.cast(BYTES, ADDRESS).value),
        (ctypes.POINTER(Pair), ctypes.pointer(PAIR), ctypes.addressof(PAIR)),
    ],
    # Addresses differ between the processes of a test run.
    ids="int bool address null float bytes pointer".split(),
)
def test_arguments_are_words(kind: object, argument: object, expected: int) -> None:
    assert word(kind, argument) == expected


@torch.inference_mode()
def test_a_negative_float_is_a_word() -> None:
    """Its sign is bit 31: the word is positive, and its first bytes are those of the float."""
    assert word(FLOAT, -1.5) == struct.unpack("<I", struct.pack("<f", -1.5))[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@torch.inference_mode()
def test_kernels_between_operations_are_one_step(dtype: torch.dtype) -> None:
    weight = torch.rand(32)

    def call(x: Tensor) -> Tensor:
        for eps in (1e-6, 1e-2, 0.5):
            x = rms_norm(x, weight, eps)[0]
        return rms_norm(x + 1, weight, 1e-6)[0]

    x = torch.randn(3, 32).to(dtype)
    graph = record(lambda: call(x))
    steps = [step for step, _ in graph.steps]
    counts = [step.count if isinstance(step, KernelCalls) else 0 for step in steps]
    assert counts == [3, 0, 1], "three norms, a sum, a norm"
    for _ in range(2):
        x.copy_(torch.randn(3, 32))
        assert graph().equal(call(x))


def test_calls_keep_their_order() -> None:
    order: list[int] = []
    prototype = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_int64))
    note = prototype(lambda words: order.append(words[0]))
    kernel = NativeKernel(print, note, (INT,))
    KernelCalls([(kernel, (i,)) for i in (5, 3, 8)])()
    assert order == [5, 3, 8]
