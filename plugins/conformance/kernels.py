"""Tools that test Triton kernels without a GPU.

- Interpretation: `interpret()` before triton is imported makes `@triton.jit` run as numpy, so that
  a kernel's wrapper takes CPU tensors and can be compared with its naive version. With a CUDA
  device it has no effect, and the same tests run the compiled kernel: put inputs on `DEVICE`.
- Poison: within `poison()` fresh memory holds NaN, which shows outputs that are not written.
- Compilation: `compile_for` runs a kernel's own wrapper under a driver that only compiles, for any
  of `TARGETS`, and reports registers, spills, shared memory and the instructions of the hot loop.
"""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import numpy
import torch

from ostro.core.errors import Unsupported
from ostro.core.records import resolve

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""The device of tensors in kernel tests."""

TARGETS = {
    "sm_75": ("cuda", 75, 32),
    "sm_80": ("cuda", 80, 32),
    "sm_89": ("cuda", 89, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "sm_120": ("cuda", 120, 32),
    "gfx942": ("hip", "gfx942", 64),
    "gfx1100": ("hip", "gfx1100", 32),
}
"""Each GPU a kernel is compiled for: triton's backend, architecture and threads per warp."""

QUICK = ("sm_80", "sm_90")
"""The targets of a quick test run."""

SENTINEL = 0x5A5A5A5A


def interpret() -> None:
    """Make triton interpret kernels if no GPU is present; call it before triton is imported.

    Raises Unsupported if triton is already imported: its functions are compiled then.
    """
    if DEVICE.type == "cuda":
        return
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise Unsupported(
            "triton was imported before ostro.testing.interpret(); "
            "call it in tests/conftest.py, or set TRITON_INTERPRET=1"
        )
    os.environ["TRITON_INTERPRET"] = "1"
    # kernels on a GPU overflow without a warning
    numpy.seterr(all="ignore")


@contextmanager
def poison() -> Iterator[None]:
    """Fill uninitialised tensors that torch allocates: NaN in floats, `SENTINEL` in integers."""
    with fill_memory(None):
        yield


@contextmanager
def fill_memory(value: float | None) -> Iterator[None]:
    """Fill uninitialised tensors that torch allocates with a value; None as `poison`."""
    with ExitStack() as patches:
        for owner, name in (
            (torch, "empty"),
            (torch, "empty_like"),
            (torch, "empty_strided"),
            (torch.Tensor, "new_empty"),
            (torch.Tensor, "new_empty_strided"),
        ):
            filled = allocator(getattr(owner, name), value)
            patches.enter_context(mock.patch.object(owner, name, filled))
        yield


def allocator(
    allocate: Callable[..., torch.Tensor], value: float | None
) -> Callable[..., torch.Tensor]:
    def filled(*args: Any, **kwargs: Any) -> torch.Tensor:
        fresh = allocate(*args, **kwargs)
        if value is not None:
            return fresh.fill_(value)
        if fresh.is_floating_point() or fresh.is_complex():
            return fresh.fill_(float("nan"))
        if fresh.dtype == torch.bool:
            return fresh.fill_(True)
        return fresh.fill_(SENTINEL & torch.iinfo(fresh.dtype).max)

    return filled


def targets() -> list[Any]:
    """The names of `TARGETS` as pytest parameters, those that are not `QUICK` marked slow."""
    import pytest

    return [pytest.param(t, marks=() if t in QUICK else pytest.mark.slow) for t in TARGETS]


@dataclass(frozen=True)
class Build:
    """A kernel compiled for one target.

    kernel: its name; registers: per thread; spills: bytes of stack (NVIDIA) or spilled vector
    registers (AMD); shared: bytes per program; threads: per program; assembly: SASS or amdgcn.
    """

    kernel: str
    target: str
    registers: int
    spills: int
    shared: int
    threads: int
    assembly: str

    @cached_property
    def loop(self) -> list[str]:
        """The instructions of the longest loop, or of the whole kernel without loops
        (SASS only).
        """
        code: list[str] = []
        labels: dict[str, int] = {}
        loops: list[tuple[int, int]] = []
        for line in self.assembly.splitlines():
            if label := re.match(r"\s*(\.L_x_\d+):", line):
                labels[label[1]] = len(code)
            elif instruction := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", line):
                code.append(re.sub(r"^@!?U?P\w+ +", "", instruction[1]))
                jump = re.search(r"\bBRA\b.*\((\.L_x_\d+)\)", code[-1])
                if jump and labels.get(jump[1], len(code)) < len(code) - 1:
                    loops.append((labels[jump[1]], len(code)))
        start, end = max(loops, key=lambda loop: loop[1] - loop[0], default=(0, len(code)))
        return code[start:end]

    @property
    def opcodes(self) -> Counter[str]:
        """The number of each instruction in the loop, without modifiers: {"FFMA": 64...}."""
        return Counter(line.split()[0].split(".")[0] for line in self.loop)

    @property
    def loads(self) -> Counter[str]:
        """The number of loads from global memory in the loop, by width: {"128": 4, "U8": 1...}."""
        found = (line.split()[0] for line in self.loop if re.match(r"LDG", line))
        widths = (re.search(r"\.(U8|S8|U16|S16|64|128)\b", load) for load in found)
        return Counter(width[1] if width else "32" for width in widths)

    def instructions_per(self, elements: int) -> float:
        """Issued instructions per element, if a program processes `elements` per loop iteration."""
        return len(self.loop) * self.threads / elements


def compile_for(target: str, call: str, *args: Any, **kwargs: Any) -> list[Build]:
    """Compile what `call`, an import string of a wrapper, launches for these arguments, in order.

    Triton specialises as at run time, on dtypes, alignment and integer values, so pass real shapes
    and strides; tensors on the device "meta" take no memory. A worker process compiles, because
    triton may be interpreting in this one.
    """
    return worker().submit(build, target, call, pickle.dumps((args, kwargs))).result()


@cache
def worker() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=compile_only)


def compile_only() -> None:
    os.environ.pop("TRITON_INTERPRET", None)
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")


def build(target: str, call: str, pickled: bytes) -> list[Build]:
    """Run a wrapper whose launches only compile. Runs in the worker."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime.jit import JITFunction

    args, kwargs = pickle.loads(pickled)
    launched: list[Any] = []
    run = JITFunction.run

    def compiled(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        self.device_caches.clear()
        launched.append(run(self, *args, grid=grid, warmup=True, **kwargs))

    triton.runtime.driver.set_active(offline_driver(GPUTarget(*TARGETS[target])))
    with mock.patch.object(JITFunction, "run", compiled):
        resolve(call)(*args, **kwargs)
    return [measure(target, kernel) for kernel in launched]


@contextmanager
def record_launches(target: str) -> Iterator[list[str]]:
    """Record the kernels launched in the context in place of running them; fresh memory is zero.

    A kernel is named by all that Triton specialises on: launches of one name run the same compiled
    code. Raises Unsupported if triton interprets kernels in this process.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime.jit import JITFunction

    if triton.knobs.runtime.interpret:
        raise Unsupported("triton interprets kernels here; unset TRITON_INTERPRET")
    names: list[str] = []

    def record(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        *_, binder = self.device_caches[0]
        _, specialization, options = binder(*args, **kwargs, debug=False)
        names.append(f"{self.__module__}:{self.__name__} {specialization} {options}")

    triton.runtime.driver.set_active(offline_driver(GPUTarget(*TARGETS[target])))
    with mock.patch.object(JITFunction, "run", record), fill_memory(0):
        yield names


def offline_driver(target: Any) -> Any:
    """A triton driver that reports an absent GPU as the target of compilation."""
    from triton.backends.driver import DriverBase

    class Offline(DriverBase):  # type: ignore[misc]
        utils = mock.Mock(
            get_device_properties=lambda device: {
                "multiprocessor_count": 108,
                "max_shared_mem": 101376 if target.backend == "cuda" else 65536,
                "warpSize": target.warp_size,
            }
        )

        def __init__(self) -> None:
            pass

        @staticmethod
        def is_active() -> bool:
            return True

        def get_current_target(self) -> Any:
            return target

        def get_current_device(self) -> int:
            return 0

        def set_current_device(self, device: int) -> None:
            pass

        def get_current_stream(self, device: int = 0) -> int:
            return 0

        def get_device_capability(self, device: int = 0) -> tuple[int, int]:
            return divmod(target.arch, 10) if target.backend == "cuda" else (9, 4)

        def get_device_interface(self) -> Any:
            return torch.cpu

        def get_active_torch_device(self) -> torch.device:
            return torch.device("cpu")

        def map_python_to_cpp_type(self, ty: str) -> str:
            return ty

        def get_benchmarker(self) -> Any:
            raise Unsupported("timing needs a GPU; this driver only compiles")

        get_empty_cache_for_benchmark = clear_cache = get_benchmarker

    return Offline()


def measure(target: str, kernel: Any) -> Build:
    """The resource usage of a compiled kernel, from its machine code."""
    metadata = kernel.metadata
    common = {"kernel": metadata.name, "target": target, "shared": metadata.shared}
    warp = TARGETS[target][2]
    common["threads"] = warp * metadata.num_warps
    if "amdgcn" in kernel.asm:
        text = kernel.asm["amdgcn"]
        registers, spills = (
            int(re.search(rf"\.{field}:\s*(\d+)", text)[1])  # type: ignore[index]
            for field in ("vgpr_count", "vgpr_spill_count")
        )
        return Build(**common, registers=registers, spills=spills, assembly=text)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(kernel.asm["cubin"])
        usage = disassemble("cuobjdump", "-res-usage", file.name)
        sass = disassemble("nvdisasm", "-c", file.name)
    used = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    if used is None:
        raise Unsupported(
            f"{metadata.name}: no register count in the output of cuobjdump: {usage:.200}"
        )
    return Build(**common, registers=int(used[1]), spills=int(used[2]), assembly=sass)


def disassemble(tool: str, *arguments: str) -> str:
    """Run one of the CUDA tools that come with triton."""
    import triton

    path = Path(triton.__file__).parent / "backends/nvidia/bin" / tool
    command: Sequence[str] = [str(path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
