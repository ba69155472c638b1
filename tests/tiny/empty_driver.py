"""A CUDA driver that does nothing: Triton compiles and launches kernels without a GPU."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import local

import triton

# What Triton's driver.c calls. Handles are arbitrary, a launch is counted.
LIBCUDA = """
#include <cuda.h>
static int launches;
int count_launches(void) { int n = launches; launches = 0; return n; }
CUresult cuCtxGetCurrent(CUcontext *c) { *c = (CUcontext)1; return 0; }
CUresult cuCtxSetCurrent(CUcontext c) { return 0; }
CUresult cuCtxGetDevice(CUdevice *d) { *d = 0; return 0; }
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
CUresult cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus *c) { *c = 0; return 0; }
CUresult cuModuleUnload(CUmodule m) { return 0; }
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


@contextmanager
def empty_driver() -> Iterator[Callable[[], int]]:
    """Make a libcuda that does nothing Triton's; yield a function that counts its launches.

    Triton's cache of files is empty. The launches are those since the last call.
    """
    from triton.backends.nvidia import driver

    class Driver(driver.CudaDriver):  # type: ignore[misc]
        def __init__(self) -> None:
            self.utils, self.launcher_cls = driver.CudaUtils(), driver.CudaLauncher
            self.current = local()

        def get_device_capability(self, device: int = 0) -> tuple[int, int]:
            return 9, 0

        def get_current_stream(self, device: int = 0) -> int:
            return 0

        def get_current_device(self) -> int:
            return getattr(self.current, "device", 0)

        def set_current_device(self, device: int) -> None:
            self.current.device = device

    include = Path(driver.__file__).parent / "include"
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "libcuda.so.1")
        command = ["gcc", "-shared", "-fPIC", "-w", f"-I{include}", f"-Wl,-soname,{library.name}"]
        subprocess.run([*command, "-xc", "-", "-o", library], input=LIBCUDA, text=True, check=True)
        os.environ |= {"TRITON_LIBCUDA_PATH": folder, "TRITON_CACHE_DIR": folder}
        loaded = ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
        triton.runtime.driver.set_active(Driver())
        yield loaded.count_launches
