"""Every kernel that a plugin brings, against its naive twin, on what the model itself hands it."""

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
from ostro.plugins.conformance.checks import answers, check
from ostro.plugins.conformance.examples import Example, beginning
from ostro.plugins.conformance.kernels import DEVICE, interpret, poison
from ostro.plugins.conformance.parity import BAR, Subject, deviation

CALLS = 3
"""Of one operation that are compared: the first ones, of a prompt in two chunks and a row alone."""

Call = tuple[Sequence[Any], Mapping[str, Any]]


@check(answers)
def kernels_match_their_naive_versions(tiny: Subject) -> None:
    """Those that the plugin brings; where no GPU is, Triton's are interpreted."""
    names, wrong, compared = set[str](), [], 0
    for place in dict.fromkeys(("cpu", DEVICE.type)):
        loaded = tiny.load(device=place)
        ops = brought(loaded.model)
        names |= {*ops}
        for name, (op, calls) in recorded(tiny, loaded, ops).items():
            for kernel, run in runnable(op, place) if calls else ():
                off = max(difference(op, run, *call) for call in calls)
                compared += 1
                if off > BAR:
                    wrong.append(f"{name}: {kernel.name} is off by {off:.2g}")
    assert not wrong, "; ".join(wrong)
    if not compared:
        here = f"nothing here can run {', '.join(names)}"
        pytest.skip(here if names else "it brings no kernel")


def brought(model: Module) -> dict[str, list[Op]]:
    """The operations of a model that do not come with the core, by name."""
    found: dict[str, list[Op]] = {}
    for module in model.modules():
        for op in vars(module).values():
            if isinstance(op, Op) and not op.kernels[-1].call.startswith("ostro.core."):
                found.setdefault(op.name, []).append(op)
    return found


def recorded(
    tiny: Subject, loaded: Any, ops: Mapping[str, list[Op]]
) -> dict[str, tuple[Op, list[Call]]]:
    """What the first operation of each name is called with, its naive twin at work."""
    found: dict[str, tuple[Op, list[Call]]] = {}
    for name, same in ops.items():
        calls: list[Call] = []
        for op in same:
            op.kernel = resolve(op.kernels[-1].call)
            if isinstance(op, Fused):
                op.on = True
        first = same[0]
        first.kernel = keeping(calls, first.kernel)
        found[name] = first, calls
    engine = tiny.engine(loaded)
    if tiny.decodes:
        tiny.answer(engine, Example(beginning(tiny.examples[0].prompt, 23)), rows=11)
    for example in tiny.examples[int(tiny.decodes) :]:
        tiny.answer(engine, example)
    return found


def keeping(calls: list[Call], kernel: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        if len(calls) < CALLS:
            calls.append(deepcopy((args, kwargs)))
        return kernel(*args, **kwargs)

    return call


def runnable(op: Op, place: str) -> Iterator[tuple[Kernel, Any]]:
    """The kernels of an operation that can be run on tensors that lie on `place`."""
    for kernel in op.kernels[:-1]:
        meant = torch.device("cuda" if "cuda" in kernel.devices else "cpu")
        fits = not refusal(kernel, Target(device=meant, dtype=torch.float32), op.facts)
        if not fits or (DEVICE if meant.type == "cuda" else meant).type != place:
            continue
        try:
            if meant.type == "cuda":
                interpret()
            yield kernel, resolve(kernel.call)
        except (ImportError, Unsupported):
            continue


def difference(op: Op, run: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    """How far a kernel is from the twin: in what it returns, and in what it writes in place."""
    ours, theirs = deepcopy((args, kwargs)), deepcopy((args, kwargs))
    with torch.inference_mode():
        with poison():
            y = run(*ours[0], **ours[1])
        expected = resolve(op.kernels[-1].call)(*theirs[0], **theirs[1])
    both = zip(inside([y, ours]), inside([expected, theirs]), strict=True)
    return max((apart(a, b) for a, b in both), default=0.0)


def inside(value: Any) -> Iterator[Tensor]:
    """The tensors in tuples, lists, mappings and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from (t for item in value.values() for t in inside(item))
    elif isinstance(value, tuple | list):
        yield from (t for item in value for t in inside(item))
    elif is_dataclass(value) and not isinstance(value, type):
        yield from (t for f in fields(value) for t in inside(getattr(value, f.name)))


def apart(a: Tensor, b: Tensor) -> float:
    if torch.equal(a, b):
        return 0.0
    return deviation(a.float(), b.float()) if a.is_floating_point() else float("inf")
