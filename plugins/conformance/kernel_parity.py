"""The check of a plugin's kernels against their naive versions, on inputs of the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from ostro.core.errors import Unsupported
from ostro.core.nn import Module
from ostro.core.ops import Fused, Op, Target
from ostro.core.ops.choose import Kernel, refusal
from ostro.core.records import resolve
from ostro.plugins.conformance.checks import check, has_outputs
from ostro.plugins.conformance.examples import Example, beginning
from ostro.plugins.conformance.kernels import DEVICE, interpret, poison
from ostro.plugins.conformance.parity import BAR, Subject, deviation

CALLS = 3
"""Calls of one operation that are compared: the first, of a prompt in two chunks and one row."""

Call = tuple[Sequence[Any], Mapping[str, Any]]


@check(has_outputs)
def kernels_match_their_naive_versions(tiny: Subject) -> None:
    """The kernels of the plugin; without a GPU those of Triton are interpreted."""
    names, wrong, compared = set[str](), [], 0
    for device in dict.fromkeys(("cpu", DEVICE.type)):
        loaded = tiny.load(device=device)
        ops = plugin_ops(loaded.model)
        names |= {*ops}
        for name, (op, calls) in recorded(tiny, loaded, ops).items():
            for kernel, run in runnable(op, device) if calls else ():
                off = max(difference(op, run, *call) for call in calls)
                compared += 1
                if off > BAR:
                    wrong.append(f"{name}: {kernel.name} is off by {off:.2g}")
    assert not wrong, "; ".join(wrong)
    if not compared:
        reason = f"no kernel of {', '.join(names)} runs on this machine"
        pytest.skip(reason if names else "the plugin has no kernel")


def plugin_ops(model: Module) -> dict[str, list[Op]]:
    """The operations of a model that are not defined in the core, by name."""
    found: dict[str, list[Op]] = {}
    for module in model.modules():
        for op in vars(module).values():
            if isinstance(op, Op) and not op.kernels[-1].call.startswith("ostro.core."):
                found.setdefault(op.name, []).append(op)
    return found


def recorded(
    tiny: Subject, loaded: Any, ops: Mapping[str, list[Op]]
) -> dict[str, tuple[Op, list[Call]]]:
    """The first operation of each name, and the arguments of its calls.

    The model runs with naive versions meanwhile.
    """
    found: dict[str, tuple[Op, list[Call]]] = {}
    for name, same in ops.items():
        calls: list[Call] = []
        for op in same:
            op.kernel = resolve(op.kernels[-1].call)
            if isinstance(op, Fused):
                op.on = True
        first = same[0]
        first.kernel = recording(calls, first.kernel)
        found[name] = first, calls
    engine = tiny.engine(loaded)
    if tiny.decodes:
        tiny.answer(engine, Example(beginning(tiny.examples[0].prompt, 23)), rows=11)
    for example in tiny.examples[int(tiny.decodes) :]:
        tiny.answer(engine, example)
    return found


def recording(calls: list[Call], kernel: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        if len(calls) < CALLS:
            calls.append(deepcopy((args, kwargs)))
        return kernel(*args, **kwargs)

    return call


def runnable(op: Op, device: str) -> Iterator[tuple[Kernel, Any]]:
    """The kernels of an operation that run on tensors on `device`."""
    for kernel in op.kernels[:-1]:
        wanted = torch.device("cuda" if "cuda" in kernel.devices else "cpu")
        fits = not refusal(kernel, Target(device=wanted, dtype=torch.float32), op.facts)
        if not fits or (DEVICE if wanted.type == "cuda" else wanted).type != device:
            continue
        try:
            if wanted.type == "cuda":
                interpret()
            yield kernel, resolve(kernel.call)
        except (ImportError, Unsupported):
            continue


def difference(op: Op, run: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    """The deviation of a kernel from the naive version, in its outputs and in-place writes."""
    ours, theirs = deepcopy((args, kwargs)), deepcopy((args, kwargs))
    with torch.inference_mode():
        with poison():
            y = run(*ours[0], **ours[1])
        expected = resolve(op.kernels[-1].call)(*theirs[0], **theirs[1])
    both = zip(tensors_in([y, ours]), tensors_in([expected, theirs]), strict=True)
    return max((deviation_of(a, b) for a, b in both), default=0.0)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in tuples, lists, mappings and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from (t for item in value.values() for t in tensors_in(item))
    elif isinstance(value, tuple | list):
        yield from (t for item in value for t in tensors_in(item))
    elif is_dataclass(value) and not isinstance(value, type):
        yield from (t for f in fields(value) for t in tensors_in(getattr(value, f.name)))


def deviation_of(a: Tensor, b: Tensor) -> float:
    """The deviation of floats; inf for integers that differ."""
    if torch.equal(a, b):
        return 0.0
    return deviation(a.float(), b.float()) if a.is_floating_point() else float("inf")
