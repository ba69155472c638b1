"""FLUX's adaptive layer norm: Triton against its naive version, and compiled for every GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ostro.architectures.flux import kernels, naive
from ostro.core.ops import Op, Target
from ostro.plugins.conformance.kernels import DEVICE, compile_for, poison, targets

SHAPES = [(1, 1, 64), (1, 5, 100), (2, 3, 33), (3, 4, 3072), (2, 7, 1), (1, 0, 8)]
"""Images, rows of each, width."""


def inputs(shape: tuple[int, int, int], dtype: torch.dtype) -> dict[str, Tensor]:
    """Rows, and vectors as the views of one linear's output that they are in the model."""
    torch.manual_seed(0)
    n, rows, d = shape
    x, y = torch.randn(2, n * rows, d, device=DEVICE).mul(3).add(1).to(dtype)
    vectors = torch.randn(n, 6 * d, device=DEVICE).to(dtype).chunk(6, 1)
    return {"x": x, "y": y, "gate": vectors[5], "shift": vectors[1], "scale": vectors[3]}


ARGUMENTS = {
    "modulate": ("x", "shift", "scale"),
    "gate_add": ("x", "y", "gate"),
    "gate_modulate": ("x", "y", "gate", "shift", "scale"),
}


def call(module: Any, name: str, given: dict[str, Tensor]) -> Any:
    eps = () if name == "gate_add" else (1e-6,)
    return getattr(module, name)(*(given[key] for key in ARGUMENTS[name]), *eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_kernel_matches_the_naive_one(
    name: str, shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    given = inputs(shape, dtype)
    kept = given["x"].clone()
    with poison():
        ours = call(kernels, name, given)
    torch.testing.assert_close(ours, call(naive, name, given))
    assert torch.equal(given["x"], kept), "an input was written"


@pytest.mark.parametrize("module", [kernels, naive], ids=["triton", "naive"])
def test_sums_stay_within_float16(module: Any) -> None:
    given = inputs((1, 2, 16), torch.float16)
    given["x"], given["y"] = given["x"] * 0 + 6e4, given["y"] * 0 + 6e4
    total = module.gate_add(given["x"], given["y"], given["gate"] * 0 + 2)
    assert bool((total == torch.finfo(torch.float16).max).all())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize("name", ARGUMENTS)
def test_compiles_without_spills(name: str, target: str, dtype: torch.dtype) -> None:
    """1024 x 1024 pixels and 512 rows of text in the single stream of FLUX.1."""
    x, y = (torch.empty(4608, 3072, dtype=dtype, device="meta") for _ in range(2))
    vectors = torch.empty(1, 6 * 3072, dtype=dtype, device="meta").chunk(6, 1)
    given = {"x": x, "y": y, "gate": vectors[5], "shift": vectors[1], "scale": vectors[3]}
    eps = () if name == "gate_add" else (1e-6,)
    arguments = [given[key] for key in ARGUMENTS[name]]
    (build,) = compile_for(target, f"{kernels.__name__}:{name}", *arguments, *eps)
    assert build.spills == 0
    assert build.registers <= 128
    assert build.shared <= 16384


def test_a_gpu_takes_the_kernel() -> None:
    for kernels_ in (naive.MODULATE, naive.GATE_ADD, naive.GATE_MODULATE):
        for device, name in (("cuda", "triton"), ("cpu", "naive")):
            target = Target(device=torch.device(device), dtype=torch.float32, deterministic=True)
            assert Op(kernels_).select(target).kernel.name == name
