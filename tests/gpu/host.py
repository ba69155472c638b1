"""Measure the host's time per step with a prompt, on a machine without a GPU.

    PYTHONPATH=src:tests python tests/gpu/host.py llama q4k

The arguments are an architecture and a format, or `none`. A model of 32 small layers runs with the
kernels for CUDA. Triton compiles them for sm_90, and its launcher calls a libcuda that does
nothing, which a C compiler builds here. The times are those of Python, of Triton's launcher and of
torch's operations, which are small; those of a driver are not in them.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import triton
from tiny.cuda_kernels import cuda_kernels

from ostro.core.engine.runner import LaunchedStep, ModelRunner, standalone_sequence
from ostro.core.engine.scheduler import Chunk, StepPlan
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.parity import subject

# What Triton's driver.c calls. Handles are arbitrary, a launch is counted.
LIBCUDA = """
#include <cuda.h>
static int launches;
int count_launches(void) { int n = launches; launches = 0; return n; }
CUresult cuCtxGetCurrent(CUcontext *c) { *c = (CUcontext)1; return 0; }
CUresult cuCtxSetCurrent(CUcontext c) { return 0; }
CUresult cuDeviceGet(CUdevice *d, int i) { *d = i; return 0; }
CUresult cuDeviceGetAttribute(int *v, CUdevice_attribute a, CUdevice d) {
  *v = a == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN ? 232448 : 132;
  return 0;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) { *c = (CUcontext)1; return 0; }
CUresult cuDriverGetVersion(int *v) { *v = 13000; return 0; }
CUresult cuFuncGetAttribute(int *v, CUfunction_attribute a, CUfunction f) {
  *v = a == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return 0;
}
CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute a, int v) { return 0; }
CUresult cuFuncSetCacheConfig(CUfunction f, CUfunc_cache c) { return 0; }
CUresult cuGetErrorString(CUresult e, const char **s) { *s = "no GPU"; return 0; }
CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *n) {
  *f = (CUfunction)1;
  return 0;
}
CUresult cuModuleLoadData(CUmodule *m, const void *p) { *m = (CUmodule)1; return 0; }
CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **p, void **e) {
  launches++;
  return 0;
}
CUresult cuCtxGetLimit(size_t *v, CUlimit l) { *v = 0; return 0; }
CUresult cuCtxSetLimit(CUlimit l, size_t v) { return 0; }
CUresult cuPointerGetAttributes(unsigned n, CUpointer_attribute *a, void **v, CUdeviceptr p) {
  return 0;
}
CUresult cuPointerGetAttribute(void *v, CUpointer_attribute a, CUdeviceptr p) {
  *(CUdeviceptr *)v = p;
  return 0;
}
"""

SHAPE = {
    "num_hidden_layers": 32,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 1024,
}
ROWS, ROUNDS = 100, 15


@contextmanager
def empty_driver() -> Iterator[Callable[[], int]]:
    """Make a libcuda that does nothing Triton's; yield a function that counts its launches."""
    from triton.backends.nvidia import driver

    class Driver(driver.CudaDriver):  # type: ignore[misc]
        def __init__(self) -> None:
            self.utils, self.launcher_cls = driver.CudaUtils(), driver.CudaLauncher

        def get_device_capability(self, device: int = 0) -> tuple[int, int]:
            return 9, 0

        def get_current_stream(self, device: int = 0) -> int:
            return 0

        def get_current_device(self) -> int:
            return 0

        def set_current_device(self, device: int) -> None:
            pass

    include = Path(driver.__file__).parent / "include"
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "libcuda.so.1")
        command = ["gcc", "-shared", "-fPIC", "-w", f"-I{include}", f"-Wl,-soname,{library.name}"]
        subprocess.run([*command, "-xc", "-", "-o", library], input=LIBCUDA, text=True, check=True)
        os.environ |= {"TRITON_LIBCUDA_PATH": folder, "TRITON_CACHE_DIR": folder}
        loaded = ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
        triton.runtime.driver.set_active(Driver())
        yield loaded.count_launches


@torch.inference_mode()
def main(name: str, quant: str) -> None:
    if triton.knobs.runtime.interpret:
        raise SystemExit("unset TRITON_INTERPRET")
    torch.set_num_threads(1)
    plugins = PluginManager()
    plugins.load()
    tiny = plugins.get("architectures", name).conformance.tiny
    settings: dict[str, Any] = {"dtype": "bfloat16", "quant": None if quant == "none" else quant}
    with (
        empty_driver() as count_launches,
        cuda_kernels(),
        subject(plugins, name, config={**tiny, **SHAPE}) as made,
    ):
        loaded = made.load(**settings)
        runner = made.engine(loaded, rows=600, blocks=256, replay=True, **settings).runner
        runner.capture()
        runner.poisons = False
        captured = runner.prompt_buckets.plain
        for bucket in captured.values():
            # A graph is launched by one call.
            results = bucket.launch()
            bucket.launch = lambda results=results: results
        for kind, buckets in {"eager": {}, "captured": captured}.items():
            runner.prompt_buckets.plain = buckets
            times = []
            for _ in range(ROUNDS + 2):
                count_launches()
                times.append(step_time(runner))
            milliseconds = statistics.median(times[2:]) * 1e3
            print(f"{kind}: {milliseconds:.2f} ms, {count_launches()} launches of Triton kernels")


def step_time(runner: ModelRunner) -> float:
    """The seconds until a step with a prompt is launched, without its sampling."""
    sequence = standalone_sequence(range(ROWS))
    sequence.tables = runner.blocks.new_tables()
    runner.blocks.grow(sequence.tables, ROWS)
    launched = LaunchedStep(StepPlan([Chunk(sequence, 0, ROWS, draws=True)]))
    began = perf_counter()
    runner.run(launched)
    seconds = perf_counter() - began
    runner.blocks.release(sequence.tables)
    return seconds


if __name__ == "__main__":
    main(*sys.argv[1:])
