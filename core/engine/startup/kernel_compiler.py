"""Compiles the Triton kernels that a function launches, in threads.

Triton compiles a kernel at its first launch, which waits. Here a launch only starts the compilation
of its kernel, and all kernels are compiled side by side.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import cached_property
from threading import Lock
from traceback import walk_stack
from typing import Any

import torch
import triton
from triton.runtime import Autotuner

from ostro.core.collection import collection_off
from ostro.core.cpu import core_count
from ostro.core.dispatch import DispatchMode

MAX_THREADS = 16
"""More would wait for Python's interpreter lock: a fifth of a compilation is Python code."""

aten = torch.ops.aten
ALLOCATIONS = (
    aten.empty,
    aten.empty_like,
    aten.empty_strided,
    aten.new_empty,
    aten.new_empty_strided,
)
"""The operations that return uninitialised memory."""


def compile_launched(function: Callable[[], object]) -> int:
    """Call a function, and compile the Triton kernels that it launches, in threads.

    A kernel that this process has not compiled yet is not launched, unless Triton's autotuner
    measures it. Its results are zeros, or what their memory had before.

    Returns the number of kernels that were not in Triton's cache of files. Raises the errors of the
    function; an error of a compilation is raised by the next launch of its kernel.
    """
    # In a context of its own: Triton leaves its mode on if an exception interrupts the wait.
    return copy_context().run(compile_in_context, function)


def compile_in_context(function: Callable[[], object]) -> int:
    """`compile_launched`, in a context whose variables may stay changed."""
    threads = ThreadPoolExecutor(min(core_count(), MAX_THREADS), "ostro-compile")
    compiler = KernelCompiler(threads)
    try:
        with collection_off(), compiler, ZeroedMemory():
            function()
    finally:
        compiler.ended = True
        threads.shutdown(cancel_futures=True)
    return compiler.compiled


class ZeroedMemory(DispatchMode):
    """Fills the memory that torch allocates with zeros.

    Operations read the results of kernels that were not launched: as indices, zeros are valid.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket in ALLOCATIONS:
            out.zero_()
        return out


class KernelCompiler(triton.AsyncCompileMode):  # type: ignore[misc]
    """Triton's mode of asynchronous compilation, in which nothing is launched.

    In Triton's own mode, a launch waits for its kernel. compiled: kernels that were not in Triton's
    cache of files. ended: kernels are launched again.
    """

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        # A kernel that does not compile stays a `SkippedKernel`, which raises when it is launched.
        super().__init__(threads, ignore_errors=True)
        self.compiled, self.ended = 0, False
        self.locks = defaultdict[str, Lock](Lock)

    def submit(
        self, key: str, compile: Callable[[], Any], *callbacks: Callable[[Any], None]
    ) -> Any:
        """Called by Triton for a kernel that this process has not compiled; returns what to launch.

        `key` has all that the machine code depends on. The first of the callbacks takes the
        compiled kernel; Triton 3.9 has another one.
        """
        if is_autotuned():
            kernel = compile()
            callbacks[0](kernel)
            return kernel
        device, lock = triton.runtime.driver.active.get_current_device(), self.locks[key]

        def load() -> Any:
            # With the lock, the same kernel for a second device comes from the cache of files.
            with lock:
                triton.runtime.driver.active.set_current_device(device)
                kernel = compile()
                # Triton loads the code and builds the launcher at the first launch, too.
                _ = kernel.run
            return kernel

        super().submit((key, device), load, *callbacks)
        return SkippedKernel(self, compile)

    def __enter__(self) -> KernelCompiler:
        self.listener = triton.knobs.compilation.listener
        triton.knobs.compilation.listener = self.note
        super().__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        """Wait until all kernels are compiled; after an error, for those that have begun."""
        if kind is not None:
            self.executor.shutdown(wait=False, cancel_futures=True)
            # Triton would wait for them.
            self.raw_futures: list[Any] = [
                each for each in self.raw_futures if not each.cancelled()
            ]
        try:
            super().__exit__(kind, error, traceback)
        finally:
            triton.knobs.compilation.listener = self.listener

    def note(self, *, cache_hit: bool, **details: Any) -> None:
        """Called by Triton, in a thread, for each kernel that is compiled or read."""
        self.compiled += not cache_hit
        if self.listener is not None:
            self.listener(cache_hit=cache_hit, **details)


def is_autotuned() -> bool:
    """Whether Triton's autotuner launches a kernel: it needs the times of real launches."""
    return any(isinstance(frame.f_locals.get("self"), Autotuner) for frame, _ in walk_stack(None))


class SkippedKernel:
    """Stands for a kernel that a thread compiles; Triton's launches call its methods.

    If the compilation failed or was cancelled, Triton keeps it in place of the kernel. Its next
    launch compiles the kernel, or raises the error.
    """

    def __init__(self, compiler: KernelCompiler, compile: Callable[[], Any]) -> None:
        self.compiler, self.compile = compiler, compile

    @cached_property
    def kernel(self) -> Any:
        return self.compile()

    def result(self) -> Any:
        """What Triton 3.6 launches in place of this."""
        return self.kernel if self.compiler.ended else self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name) if self.compiler.ended else skip


def skip(*arguments: Any) -> None:
    """What a skipped kernel does when it is launched."""
