"""Signatures: check the tensor arguments of a native kernel before it gets their addresses.

A C++ function receives addresses and sizes. It cannot detect that a tensor is shorter than another
one implies, and would read or write beyond its end. A wrapper therefore checks every tensor with
the kernel's `Signature`. A combination of shapes, strides and dtypes is checked once and cached.
Calls of a CPU graph are checked at capture only: a replay has the same tensors.

The values of index tensors (block tables, slots, positions, expert ids) are not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ostro.core.errors import InvalidTensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Float types that kernels compute in."""

LIMIT = 4096
"""Most combinations that a signature caches; a limit because prompts have many lengths."""

LEADING = "..."

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Arg:
    """A tensor argument of a kernel, on the CPU.

    dims: one word per dimension. A name has one size in all arguments of a call; "n+1" and "n-1"
    are derived from the size of n, which an earlier argument or the call itself must give; "16" is
    a fixed size. A leading "..." is any leading dimensions, the same in all arguments of a call.
    dtype: None for the float dtype that all such arguments of a call share.
    strided: names of the dimensions that may have any stride; the others must be contiguous.
    optional: whether None may be passed.
    """

    dims: str
    dtype: torch.dtype | None = None
    strided: str = ""
    optional: bool = False


class Signature:
    """The arguments of one kernel: `signature(*tensors, **sizes)` raises InvalidTensor unless the
    tensors, in the order of `arguments`, agree with them and with each other.

    Arguments are checked in order, the most trusted first: the error names the first that
    contradicts earlier ones. `sizes` are dimensions that no tensor has. `rules` maps a description,
    for the error, to a condition on sizes.
    """

    def __init__(
        self,
        kernel: str,
        rules: Mapping[str, Callable[[Sizes], bool]] | None = None,
        **arguments: Arg,
    ) -> None:
        self.kernel, self.rules, self.arguments = kernel, rules or {}, arguments
        self.known: set[tuple[object, ...]] = set()

    def __call__(self, *tensors: Tensor | None, **sizes: int) -> None:
        layouts = [t if t is None else (t.shape, t.stride(), t.dtype, t.is_cpu) for t in tensors]
        key = (*layouts, *sizes.values())
        if key in self.known:
            return
        self.check(tensors, sizes)
        # Clear all instead of evicting one by one: checks are cheap, and the limit is rarely hit.
        if len(self.known) >= LIMIT:
            self.known.clear()
        self.known.add(key)

    def check(self, tensors: Sequence[Tensor | None], sizes: dict[str, int]) -> None:
        """Check the tensors in order; adds the sizes of all dimensions to `sizes`."""
        dtype = None
        for (name, arg), tensor in zip(self.arguments.items(), tensors, strict=True):
            if tensor is None:
                if arg.optional:
                    continue
                raise self.error(name, "is None, expected a tensor")
            if dtype is None and arg.dtype is None and tensor.dtype in DTYPES:
                dtype = tensor.dtype
            expected = arg.dtype or dtype or "a float type"
            if tensor.dtype != expected:
                raise self.error(name, f"has dtype {tensor.dtype}, expected {expected}")
            if not tensor.is_cpu:
                raise self.error(name, f"is on {tensor.device}, expected cpu")
            if not fits(tensor, arg.dims, sizes):
                wanted = describe(arg.dims, sizes)
                raise self.error(name, f"has shape {list(tensor.shape)}, expected {wanted}")
            if not is_contiguous(tensor, arg):
                free = f"except for {arg.strided}" if arg.strided else "in all dimensions"
                strides = f"shape {list(tensor.shape)} and strides {list(tensor.stride())}"
                raise self.error(name, f"has {strides}, expected it to be contiguous {free}")
        for sentence, holds in self.rules.items():
            if not holds(sizes):
                raise InvalidTensor(
                    f"calls the native kernel {self.kernel} with sizes {sizes}, expected {sentence}"
                )

    def error(self, name: str, fault: str) -> InvalidTensor:
        return InvalidTensor(
            f"calls the native kernel {self.kernel}, whose argument {name} {fault}"
        )


def spread(dims: str, ndim: int) -> list[str]:
    """One word per dimension of a tensor with `ndim` dimensions: expands "..."."""
    words = dims.split()
    if words[0] != LEADING:
        return words
    return [f"{LEADING}{i}" for i in range(ndim - len(words) + 1)] + words[1:]


def fits(tensor: Tensor, dims: str, sizes: dict[str, int]) -> bool:
    """Return whether a tensor has these dimensions; adds sizes that were unknown to `sizes`."""
    words = spread(dims, tensor.ndim)
    shown = list(zip(words, tensor.shape, strict=False))
    if dims.startswith(LEADING):  # as many leading dimensions as other arguments have
        shown.append((LEADING, sum(word.startswith(LEADING) for word in words)))
    for dim, size in shown:
        known = size_of(dim, sizes)
        if known is None:
            sizes[dim] = size
        elif known != size:
            return False
    return len(words) == tensor.ndim


def size_of(dim: str, sizes: Sizes) -> int | None:
    """The size of "16", "n", "n+1" or "n-1"; None if that of n is not known yet."""
    for sign in "+-":
        if sign in dim:
            name, offset = dim.split(sign)
            return sizes[name] + int(sign + offset)
    return int(dim) if dim.isdigit() else sizes.get(dim)


def describe(dims: str, sizes: Sizes) -> str:
    """Dimensions in words: "[rows=3, 16, d=64]"."""
    words = []
    for dim in dims.split():
        size = None if dim == LEADING or dim.isdigit() else size_of(dim, sizes)
        words.append(dim if size is None else f"{dim}={size}")
    return f"[{', '.join(words)}]"


def is_contiguous(tensor: Tensor, arg: Arg) -> bool:
    """Return whether each dimension not in `strided` has the stride of a contiguous tensor."""
    words, strided = spread(arg.dims, tensor.ndim), arg.strided.split()
    step = 1
    for dim in reversed(range(tensor.ndim)):
        size, stride = tensor.shape[dim], tensor.stride(dim)
        name = LEADING if words[dim].startswith(LEADING) else words[dim]
        if name in strided:
            step = stride
        elif stride != step and size != 1 and tensor.numel():
            return False
        step *= size
    return True
