"""Kernels that threads compile: what a dry run launches, leaves, and does if there is an error.

Run as a script, this file runs its checks of small kernels and prints what they saw. The tests run
it in a process of its own, where triton does not interpret kernels, with a driver that does
nothing.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from tiny.cuda_kernels import run_compiled
from tiny.empty_driver import empty_driver

from ostro.core.engine.startup.kernel_compiler import SkippedKernel, compile_launched


@triton.jit
def add_one(x):
    tl.store(x, tl.load(x) + 1)


@triton.jit
def double(x):
    tl.store(x, tl.load(x) * 2)


@triton.jit
def negate(x):
    tl.store(x, -tl.load(x))


def bench(launch: Any, **_: Any) -> list[float]:
    """The launches of one call, for which the autotuner takes three quantiles of seconds."""
    before = count_launches()
    launch()
    launched.append(count_launches())
    return [1.0 + before] * 3


@triton.autotune([triton.Config({}, num_warps=n) for n in (1, 2)], key=[], do_bench=bench)
@triton.jit
def tuned(x):
    tl.store(x, tl.load(x) + 3)


@triton.jit
def broken(x):
    tl.store(x, tl.load(x) + undefined)  # type: ignore[name-defined]  # noqa: F821


launched = list[int]()
FLOATS, INTEGERS = torch.ones(16), torch.ones(16, dtype=torch.int32)


def launch_three() -> None:
    for x in (FLOATS, INTEGERS, FLOATS):
        add_one[(1,)](x)
    double[(1,)](FLOATS)


def compiled_kernels(kernel: Any) -> list[Any]:
    """What Triton launches for a kernel, of all devices and specialisations."""
    return [each for kernels, *_ in kernel.device_caches.values() for each in kernels.values()]


def forget() -> None:
    """Forget the kernels of this process, as if it had just started."""
    for kernel in (add_one, double, negate, broken):
        kernel.device_caches.clear()


@contextmanager
def compilations() -> Iterator[list[bool]]:
    """Whether each kernel that is compiled or read in the context came from the cache of files."""
    seen = list[bool]()
    triton.knobs.compilation.listener = lambda *, cache_hit, **_: seen.append(cache_hit)
    try:
        yield seen
    finally:
        triton.knobs.compilation.listener = None


def dry_run(count: Any) -> dict[str, Any]:
    collects = list[bool]()

    def launch() -> None:
        launch_three()
        collects.append(gc.isenabled())

    with compilations() as seen:
        compiled = compile_launched(launch)
    launched = count()
    kernels = [*compiled_kernels(add_one), *compiled_kernels(double)]
    loaded = [vars(kernel).get("module") is not None for kernel in kernels]
    with compilations() as later:
        launch_three()
    return {
        "compiled": compiled,
        "seen": seen,
        "launched": launched,
        "skipped": sum(isinstance(kernel, SkippedKernel) for kernel in kernels),
        "loaded": loaded,
        "collects": collects,
        "later": later,
        "launched later": count(),
    }


def second_process(count: Any) -> dict[str, Any]:
    compile_launched(launch_three)
    forget()
    again = compile_launched(launch_three)
    return {"again": again, "in this process": compile_launched(launch_three), "launched": count()}


def two_devices(count: Any) -> dict[str, Any]:
    driver, devices = triton.runtime.driver.active, list[int]()

    def launch() -> None:
        for device in (0, 1):
            driver.set_current_device(device)
            negate[(1,)](FLOATS)

    def noted(name: str, code: bytes, shared: int, device: int) -> Any:
        devices.append(device)
        return driver_load(name, code, shared, device)

    driver_load, driver.utils.load_binary = driver.utils.load_binary, noted
    try:
        compiled = compile_launched(launch)
    finally:
        driver.set_current_device(0)
        driver.utils.load_binary = driver_load
    kernels = compiled_kernels(negate)
    return {
        "compiled": compiled,
        "devices": sorted(devices),
        "skipped": sum(isinstance(kernel, SkippedKernel) for kernel in kernels),
        "kernels": len(set(kernels)),
    }


def autotuned(count: Any) -> dict[str, Any]:
    compiled = compile_launched(lambda: (tuned[(1,)](FLOATS), add_one[(1,)](FLOATS)))
    in_dry_run = count()
    with compilations() as later:
        tuned[(1,)](FLOATS)
    return {
        "measured": launched,
        "launched": in_dry_run,
        "later": later,
        "launched later": count(),
        "compiled": compiled,
    }


def broken_kernel(count: Any) -> dict[str, Any]:
    def launch() -> None:
        broken[(1,)](FLOATS)
        add_one[(1,)](FLOATS)

    compiled, errors = compile_launched(launch), list[str]()
    for _ in range(2):
        try:
            broken[(1,)](FLOATS)
        except triton.CompilationError as error:
            errors.append(str(error))
    add_one[(1,)](FLOATS)
    return {"compiled": compiled, "errors": errors, "launched": count()}


def error_of_the_function(count: Any) -> dict[str, Any]:
    def launch() -> None:
        launch_three()
        raise KeyboardInterrupt

    raised = False
    try:
        compile_launched(launch)
    except KeyboardInterrupt:
        raised = True
    before = count()
    launch_three()
    return {"raised": raised, "launched": before, "launched later": count()}


def interrupted_wait(count: Any) -> dict[str, Any]:
    """An interrupt of a compilation ends the wait for the others."""

    def interrupt(**_: Any) -> None:
        raise KeyboardInterrupt

    raised = False
    triton.knobs.compilation.listener = interrupt
    try:
        compile_launched(launch_three)
    except KeyboardInterrupt:
        raised = True
    kept = triton.knobs.compilation.listener is interrupt
    triton.knobs.compilation.listener = None
    before = count()
    launch_three()
    return {"raised": raised, "kept": kept, "launched": before, "launched later": count()}


def memory(count: Any) -> dict[str, Any]:
    fresh = dict[str, bool]()

    def allocate() -> None:
        x = torch.ones(1 << 14)
        for name, made in {
            "empty": lambda: torch.empty(1 << 14),
            "empty_like": lambda: torch.empty_like(x),
            "new_empty": lambda: x.new_empty(1 << 14),
            "empty_strided": lambda: torch.empty_strided((1 << 14,), (1,)),
            "new_empty_strided": lambda: x.new_empty_strided((1 << 14,), (1,)),
            "integers": lambda: torch.empty(1 << 14, dtype=torch.int64),
            "fp8": lambda: torch.empty(1 << 14, dtype=torch.float8_e4m3fn).view(torch.uint8),
        }.items():
            torch.full((1 << 14,), 7.0)  # its memory is free again, and holds other numbers
            fresh[name] = not bool(made().any())

    compile_launched(allocate)
    return fresh


CHECKS = (
    dry_run,
    second_process,
    two_devices,
    autotuned,
    broken_kernel,
    error_of_the_function,
    interrupted_wait,
    memory,
)


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return dict(json.loads(run_compiled(__file__)[-1]))


def test_threads_compile_what_is_launched(results: dict[str, Any]) -> None:
    """Each kernel once, and no launch before; later launches find them compiled and loaded."""
    seen = results["dry_run"]
    assert seen["compiled"] == 3 and seen["seen"] == [False] * 3 and seen["launched"] == 0
    assert seen["loaded"] == [True] * 3 and not seen["skipped"]
    assert seen["later"] == [] and seen["launched later"] == 4
    assert seen["collects"] == [sys.version_info >= (3, 12)]


def test_kernels_of_the_cache_are_not_counted(results: dict[str, Any]) -> None:
    """And those of this process are launched."""
    assert results["second_process"] == {"again": 0, "in this process": 0, "launched": 4}


def test_each_device_has_its_kernel(results: dict[str, Any]) -> None:
    """Compiled once, and loaded by both."""
    seen = results["two_devices"]
    assert seen == {"compiled": 1, "devices": [0, 1], "skipped": 0, "kernels": 2}


def test_triton_tunes_with_launches(results: dict[str, Any]) -> None:
    """Both variants are measured, and the chosen one is launched; the other kernel is not."""
    seen = results["autotuned"]
    assert seen["measured"] == [1, 1] and seen["launched"] == 1 and seen["compiled"] == 2
    assert seen["later"] == [] and seen["launched later"] == 1


def test_a_kernel_that_does_not_compile_raises_at_its_launch(results: dict[str, Any]) -> None:
    seen = results["broken_kernel"]
    assert len(seen["errors"]) == 2 and all("undefined" in error for error in seen["errors"])
    assert seen["launched"] == 1


@pytest.mark.parametrize("interrupted", ["error_of_the_function", "interrupted_wait"])
def test_kernels_are_launched_after_an_interrupt(results: dict[str, Any], interrupted: str) -> None:
    seen = results[interrupted]
    assert seen["raised"] and seen["launched"] == 0 and seen["launched later"] == 4
    assert seen.get("kept", True)


def test_fresh_memory_is_zero(results: dict[str, Any]) -> None:
    assert len(results["memory"]) == 7 and all(results["memory"].values())


if __name__ == "__main__":
    results = {}
    with empty_driver() as count_launches:
        for check in CHECKS:
            forget()
            count_launches()
            results[check.__name__] = check(count_launches)
    print(json.dumps(results))
