"""Layouts of the inputs of Triton kernels, which compute addresses from strides.

A kernel reads some strides and takes the others as those of a contiguous tensor: of another layout
it would read other elements. Wrappers copy activations that it does not take, and refuse parameters
and tensors that the kernel changes.
"""

from __future__ import annotations

from torch import Tensor

from ostro.core.errors import InvalidTensor


def dense_rows(x: Tensor) -> Tensor:
    """x [..., d], or a copy of it if its last dimension is not contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()


def packed_rows(x: Tensor) -> Tensor:
    """x [t, d] or [t, h, d], or a copy of it if the elements of a row are not contiguous."""
    packed = x.stride(-1) == 1 and (x.ndim == 2 or x.stride(1) == x.shape[2])
    return x if packed else x.contiguous()


def check_contiguous(kernel: str, **arguments: Tensor | None) -> None:
    """Raise InvalidTensor if one of the arguments of a kernel is not contiguous."""
    for name, tensor in arguments.items():
        if tensor is not None and not tensor.is_contiguous():
            raise refusal(kernel, name, tensor, "it to be contiguous")


def check_dense_rows(kernel: str, **arguments: Tensor | None) -> None:
    """Raise InvalidTensor if the last dimension of one of the arguments is not contiguous."""
    for name, tensor in arguments.items():
        if tensor is not None and tensor.stride(-1) != 1:
            raise refusal(kernel, name, tensor, "its last dimension to be contiguous")


def refusal(kernel: str, name: str, tensor: Tensor, expected: str) -> InvalidTensor:
    return InvalidTensor(
        f"calls the Triton kernel {kernel}, whose argument {name} has shape {list(tensor.shape)} "
        f"and strides {list(tensor.stride())}, expected {expected}"
    )
