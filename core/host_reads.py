"""Host reads: calls in which Python reads numbers that a device computed.

The host waits for the device there, and a condition on such a number cannot be captured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ostro.core.dispatch import DispatchMode

READS = {Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.item}
"""Tensor methods that return numbers to Python."""

COPIES = ("copy_", "_to_copy")
"""Operations that may copy between the host and a device."""


class NotCapturable(Exception):
    """A call cannot be captured; the message is the reason."""


class RefuseHostReads(TorchFunctionMode):
    """Refuses functions that return numbers to Python.

    A condition on such a number would be fixed by the capture, and wrong for the next inputs.
    """

    # The dispatcher does not see all of them: `numpy` and `tolist` read memory directly.
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READS:
            raise NotCapturable(f"it reads numbers on the host ({func.__name__})")
        return func(*args, **(kwargs or {}))


class RefuseWaits(DispatchMode):
    """Refuses torch operations for which the host waits for the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        why = obstacle(func, list(tensors((args, kwargs))), list(tensors(out)))
        if why:
            raise NotCapturable(why)
        return out


def obstacle(func: Any, arguments: Sequence[Tensor], results: Sequence[Tensor]) -> str:
    """The reason why a torch operation cannot be captured; empty if it can."""
    if arguments and not results:
        # Its result is a number or nothing: .item(), a comparison, an assertion.
        return f"it reads numbers on the host ({func})"
    name = func._schema.name.partition("::")[2]
    # `index` has a dynamic shape only with a mask; with integers its shape is theirs.
    masked = any(tensor.dtype in (torch.bool, torch.uint8) for tensor in arguments[1:])
    if torch.Tag.dynamic_output_shape in func.tags and (name != "index" or masked):
        return f"the shape of its result depends on numbers ({func})"
    if name in COPIES and len({tensor.device.type for tensor in (*arguments, *results)}) > 1:
        return f"it copies between the host and the device ({func})"
    return ""


def tensors(tree: Any) -> Iterator[Tensor]:
    """The tensors among nested arguments or results."""
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
