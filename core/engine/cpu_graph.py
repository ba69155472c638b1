"""Tapes: what a call did on the CPU, noted once and then repeated without Python's way through it.

A tape holds the native kernels and torch operations of a call in their order, with the very memory
that they read and wrote. Views are noted by what they lead to, memory is asked for once. What a
call decided in Python is decided for good: it may not look at numbers, and its inputs must stay in
place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ostro.core import native

T = TypeVar("T")

Step = tuple[Callable[..., Any], tuple[Any, ...]]
"""What is called, and with what."""

READS = {Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.item}
"""What shows numbers to Python."""

ROOM = 1 << 27
"""Bytes that a call may take on its way: all of them stay taken."""

EMPTY = ("empty", "new_empty")
"""How operations are called that ask for memory and write nothing."""


class NotCapturable(Exception):
    """A call cannot be repeated from a tape; says what it does."""


class RefuseHostReads(TorchFunctionMode):
    """Refuses functions that give numbers to Python."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READS:
            raise NotCapturable(f"it reads numbers on the host ({func.__name__})")
        return func(*args, **(kwargs or {}))


class RecordOperations(TorchDispatchMode):
    """Notes torch's operations among `steps`, and keeps all memory that they give."""

    def __init__(self, steps: list[Step]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps = steps
        self.kept: dict[int, Tensor] = {}  # by place
        self.room = ROOM

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        made, given = list(tensors(out)), list(tensors((args, kwargs)))
        self.keep(made, given)
        if given and not made:
            raise NotCapturable(f"it reads numbers on the host ({func})")
        name = func._schema.name.partition("::")[2]
        if func._schema.is_mutable:
            self.steps.append((partial(func, **kwargs), args))
        elif not name.startswith(EMPTY) and not views(made, given):
            masked = any(tensor.dtype in (torch.bool, torch.uint8) for tensor in given[1:])
            dynamic = torch.Tag.dynamic_output_shape in func.tags
            if dynamic and (name != "index" or masked):
                raise NotCapturable(f"the shape of what it makes depends on numbers ({func})")
            self.steps.append((again, (partial(func, *args, **kwargs), made)))
        return out

    def keep(self, made: list[Tensor], given: list[Tensor]) -> None:
        known = {place(tensor) for tensor in given}
        for tensor in made:
            if place(tensor) not in self.kept:
                self.kept[place(tensor)] = tensor
                self.room -= 0 if place(tensor) in known else tensor.nbytes
        if self.room < 0:
            raise NotCapturable("it takes too much memory on its way")


def tensors(tree: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


def views(made: list[Tensor], given: list[Tensor]) -> bool:
    """Whether all that was made lies where something lay that was given."""
    places = {place(tensor) for tensor in given}
    return all(place(tensor) in places for tensor in made)


def place(tensor: Tensor) -> int:
    """Where a tensor's memory begins; oneDNN's own blocks have no views, and are a place each."""
    return id(tensor) if tensor.is_mkldnn else tensor.untyped_storage().data_ptr()


def again(operation: Callable[[], Any], made: list[Tensor]) -> None:
    """Put what an operation gives where it gave it the first time."""
    for old, new in zip(made, tensors(operation()), strict=True):
        old.copy_(new)


@dataclass(frozen=True)
class CpuGraph(Generic[T]):
    """Repeats a call when it is called, and gives what that gave, where it lay; `kept` is all the
    memory that the steps know by its address.
    """

    steps: Sequence[Step]
    kept: Mapping[int, Tensor]
    out: T

    def __call__(self) -> T:
        for step, args in self.steps:
            step(*args)
        return self.out


def record(call: Callable[[], T]) -> CpuGraph[T]:
    """Run a call once, on a tape.

    Raises Unrecorded where the call looks at numbers, makes tensors of unknown shapes, or takes too
    much memory.
    """
    steps: list[Step] = []
    operations = RecordOperations(steps)
    native.CAPTURE.calls = steps
    try:
        with RefuseHostReads(), operations:
            out = call()
    finally:
        native.CAPTURE.calls = None
    return CpuGraph(steps, operations.kept, out)
