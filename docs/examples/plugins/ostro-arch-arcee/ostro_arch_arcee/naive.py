"""The squared ReLU in plain torch, and the list of its kernels.

    squared_relu(x) -> y

x [..., n] float, last dimension contiguous -> max(x, 0)^2 of the same shape and type, computed in
float32 and rounded once.
"""

from torch import Tensor

from ostro import Kernel

KERNELS = (
    Kernel(
        name="triton",
        call=f"{__package__}.kernels:squared_relu",
        devices=("cuda",),
        deterministic=True,
    ),
    Kernel(name="naive", call=f"{__name__}:squared_relu", deterministic=True),
)
"""Kernels in order of preference; the naive one is last."""


def squared_relu(x: Tensor) -> Tensor:
    return x.float().relu().square().to(x.dtype)
