"""CPU graphs: the kernel calls of a function, captured once and replayed without Python overhead.

A graph is the list of the native kernels and torch operations that a call ran, in their order, with
the tensors that they read and wrote. A replay runs the list on the same memory: allocations and
views are not repeated. Every decision that the call took in Python is fixed by the capture. A
captured call must therefore not read numbers from tensors, and its inputs stay in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Generic, TypeVar

from torch import Tensor

from ostro.core import native
from ostro.core.dispatch import DispatchMode
from ostro.core.host_reads import NotCapturable, RefuseHostReads, obstacle, tensors
from ostro.core.native.kernel_calls import KernelCalls

T = TypeVar("T")

Step = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and its arguments."""

MAX_BYTES = 1 << 27
"""Bytes that the intermediate tensors of a call may take: a graph keeps them allocated."""

EMPTY = ("empty", "new_empty")
"""Prefixes of the operations that allocate memory and write nothing."""


class RecordOperations(DispatchMode):
    """Appends torch operations to `steps` and keeps the memory of their results.

    Native kernels append themselves to the same list (`native.CAPTURE`), so the order is the
    program's.
    """

    def __init__(self, steps: list[Step]) -> None:
        super().__init__()
        self.steps = steps
        # By address. Later steps hold plain addresses: memory that the allocator gave to another
        # tensor would be overwritten by every replay.
        self.retained: dict[int, Tensor] = {}
        self.bytes_left = MAX_BYTES

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        results, arguments = list(tensors(out)), list(tensors((args, kwargs)))
        self.retain(results, arguments)
        if why := obstacle(func, arguments, results):
            raise NotCapturable(why)
        name = func._schema.name.partition("::")[2]
        if func._schema.is_mutable:
            # Writes into its arguments, which stay in place.
            self.steps.append((partial(func, **kwargs), args))
        elif not name.startswith(EMPTY) and not views(results, arguments):
            one = len(results) == 1 and not results[0].is_mkldnn
            into = out_variant(func) if one else None
            if into is None:
                self.steps.append((run_and_copy, (partial(func, *args, **kwargs), results)))
            else:
                self.steps.append((partial(into, **kwargs, out=results[0]), args))
        return out

    def retain(self, results: list[Tensor], arguments: list[Tensor]) -> None:
        """Retain the memory of results. Raises NotCapturable beyond `MAX_BYTES` bytes.

        Results that share memory with an argument (views) count nothing.
        """
        known = {storage_key(tensor) for tensor in arguments}
        for tensor in results:
            key = storage_key(tensor)
            if key not in self.retained:
                self.retained[key] = tensor
                self.bytes_left -= 0 if key in known else tensor.nbytes
        if self.bytes_left < 0:
            raise NotCapturable(
                f"its intermediate tensors take more than {MAX_BYTES} bytes of memory"
            )


def views(results: list[Tensor], arguments: list[Tensor]) -> bool:
    """Whether all results share memory with an argument: a replay does not repeat views."""
    keys = {storage_key(tensor) for tensor in arguments}
    return all(storage_key(tensor) in keys for tensor in results)


def storage_key(tensor: Tensor) -> int:
    """The address of a tensor's storage, or its id for oneDNN tensors, which have no address."""
    return id(tensor) if tensor.is_mkldnn else tensor.untyped_storage().data_ptr()


def out_variant(func: Any) -> Any:
    """The overload of an operation that writes its result to `out`; None if there is none."""
    schema = func._schema
    expected = [(each.name, str(each.type)) for each in schema.arguments]
    for name in func.overloadpacket.overloads():
        overload = getattr(func.overloadpacket, name)
        arguments = [(each.name, str(each.type)) for each in overload._schema.arguments]
        if arguments == [*expected, ("out", "Tensor")]:
            return overload
    return None


def run_and_copy(operation: Callable[[], Any], results: list[Tensor]) -> None:
    """Run an operation and copy its results to those of the capture."""
    for old, new in zip(results, tensors(operation()), strict=True):
        old.copy_(new)


@dataclass(frozen=True)
class CpuGraph(Generic[T]):
    """Replays a captured call. Every replay overwrites and returns `out`, which the capture made.

    `retained` holds the tensors whose addresses the steps use.
    """

    steps: Sequence[Step]
    retained: Mapping[int, Tensor]
    out: T

    def __call__(self) -> T:
        for step, args in self.steps:
            step(*args)
        return self.out


def record(call: Callable[[], T]) -> CpuGraph[T]:
    """Run a call once and capture it.

    Raises NotCapturable if the call reads numbers on the host, makes tensors whose shape depends on
    numbers, or takes more than `MAX_BYTES` bytes.
    """
    steps: list[Step] = []
    operations = RecordOperations(steps)
    # Thread-local: kernels that another thread runs meanwhile are not recorded.
    native.CAPTURE.calls = steps
    try:
        with RefuseHostReads(), operations:
            out = call()
    finally:
        native.CAPTURE.calls = None
    return CpuGraph(join(steps), operations.retained, out)


def join(steps: Sequence[Step]) -> Sequence[Step]:
    """Join consecutive kernel calls to one step, unless the C++ for it cannot be compiled."""
    joined: list[Step] = []
    for are_kernels, group in groupby(steps, lambda step: isinstance(step[0], native.NativeKernel)):
        calls: list[Any] = list(group)
        try:
            joined += [(KernelCalls(calls), ())] if are_kernels else calls
        except ImportError:
            return steps
    return joined
