"""Comparison of kernels with their naive versions, which compute in float64 here."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar
from unittest import mock

import torch
from torch import Tensor

from ostro.core.ops.kv_write.scaled import Scaled, widen
from ostro.plugins.conformance.kernels import DEVICE, poison

T = TypeVar("T")

TINY = os.environ.get("GPU_TESTS") == "tiny"
"""Whether tests run on any device, with tiny shapes: it finds mistakes without a GPU."""

ON_GPU = DEVICE.type == "cuda"

# Triton's interpreter, which runs kernels without a GPU, multiplies no bfloat16.
DTYPES = [torch.bfloat16, torch.float16] if ON_GPU else [torch.float16]

LIMITS = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-4}
"""The largest relative error of a result by its dtype: float32 excludes products in TF32."""


def pick(real: T, tiny: T) -> T:
    """A shape of a published model, or a tiny one."""
    return tiny if TINY else real


def run(kernel: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a kernel while fresh memory holds NaN."""
    with poison():
        return kernel(*args, **kwargs)


def reference(naive: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a naive kernel, which converts its inputs to float32, so that it computes in float64."""
    with mock.patch.object(Tensor, "float", Tensor.double):
        return naive(*map(double, args), **{name: double(v) for name, v in kwargs.items()})


def double(value: Any) -> Any:
    """Floats and scaled pages in float64; other values as they are."""
    if isinstance(value, Scaled):
        return value.elements.to(torch.float32).double() * value.scales.double()[..., None]
    if isinstance(value, Tensor) and value.is_floating_point() and value.dtype.itemsize > 1:
        return value.double()
    return value


def error(found: Tensor | Scaled, truth: Tensor | Scaled) -> float:
    """The norm of the difference divided by the norm of the truth; inf for NaN."""
    found, truth = (
        widen(x.elements, x.scales) if isinstance(x, Scaled) else x for x in (found, truth)
    )
    assert found.shape == truth.shape
    difference = (found.double() - truth.double()).norm() / truth.double().norm()
    ratio = float(difference)
    return ratio if ratio == ratio else float("inf")


def assert_near(found: Tensor, truth: Tensor, dtype: torch.dtype | None = None) -> None:
    """Assert that the relative error is within the limit of a dtype, by default that of `found`."""
    off, limit = error(found, truth), LIMITS[dtype or found.dtype]
    assert off <= limit, f"relative error {off:.2e}, expected at most {limit:.0e}"
