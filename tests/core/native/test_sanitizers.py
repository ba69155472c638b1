"""The native kernels under AddressSanitizer and UndefinedBehaviorSanitizer.

They are compiled with g++'s sanitizers into a cache of their own. A child runs the cases of
test_bounds.py, odd shapes included, with tensors of exactly the size that they need, and the parity
tests of the kernels. Triton's interpreter reads and writes the same memory, so that these show
faults of Triton kernels too.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TESTS = Path(__file__).resolve().parents[2]
FLAGS = "-O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
PARITY = (
    *("act_mul", "attention_cpu", "attention_full", "attention_scaled", "causal_conv"),
    *("delta_rule", "grouped_matmul", "kv_write", "kv_write_scaled", "layer_norm", "lora"),
    *("moe_route", "rms_norm", "rope", "scan"),
    # Triton kernels only
    *("attention", "latent_attention", "mask", "penalize", "sample", "varlen_attention"),
)
FILES = [f"core/ops/test_{name}.py" for name in PARITY]
FILES += ["quant/mxfp4/test_kernels.py", "quant/planes/test_native.py"]
FILES += ["quant/planes/test_triton.py", "architectures/test_kernels.py"]
FAULTS = ("AddressSanitizer", "runtime error:")


def library(name: str) -> str:
    """The path of a library of g++; the name itself if there is none."""
    command = ["g++", f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process whose kernels are sanitized; skips where g++ cannot."""
    folder = tmp_path_factory.mktemp("sanitized")
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    compiler = folder / "c++"
    compiler.write_text(f'#!/bin/sh\nexec g++ "$@" {FLAGS}\n')
    compiler.chmod(0o700)
    preloaded = [library(f"lib{name}.so") for name in ("asan", "ubsan", "stdc++")]
    if not all(map(os.path.isabs, preloaded)):
        pytest.skip("g++ has no sanitizers")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "OSTRO_CACHE": str(folder / "cache"),
        "CXX": str(compiler),
        "LD_PRELOAD": " ".join(preloaded),
        # Python frees little at its exit, and several libraries hold the same symbols.
        "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0:detect_odr_violation=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "OMP_NUM_THREADS": "1",
        "GUARD_BYTES": "0",
    }


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3600)


def test_an_access_beyond_a_tensor_is_found(environment: dict[str, str], tmp_path: Path) -> None:
    """Otherwise the other tests would show nothing."""
    (tmp_path / "kernel").mkdir()
    source = tmp_path / "kernel/native.cpp"
    source.write_text('extern "C" float read(const float* x, long i) { return x[i]; }\n')
    code = f"""
import pathlib, torch
from ostro.core import native
library = native.load(pathlib.Path({str(source)!r}))
read = native.function(library, "read", native.ADDRESS, native.INT, result=native.FLOAT)
x = torch.ones(100)
print(read(x.data_ptr(), 99), flush=True)
read(x.data_ptr(), 100)
"""
    done = run(environment, "-c", code)
    assert done.stdout == "1.0\n" and done.returncode, done.stderr
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr


def test_wrong_arguments(environment: dict[str, str]) -> None:
    done = run(environment, str(TESTS / "core/native/test_bounds.py"))
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(found) > 20 and not done.returncode
    assert not [each for each in found if each[1] or each[2]], done.stderr[:5000]


@pytest.mark.parametrize("file", FILES)
def test_parity(file: str, environment: dict[str, str]) -> None:
    options = ("-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not slow and not gpu")
    done = run(environment, "-m", "pytest", *options, str(TESTS / file))
    printed = done.stdout + done.stderr
    assert not done.returncode and not [word for word in FAULTS if word in printed], printed[-5000:]
