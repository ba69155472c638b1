"""The error of each weight by itself: on the same inputs, what it says beside the reference's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ostro.core.load.model import LoadedModel
from ostro.core.nn import Embedding, Linear
from ostro.core.nn.experts import ExpertLinear
from ostro.entrypoints.quality.figures import LayerError

CALLS, ROWS = 4, 8
"""Calls of a weight that are looked at, and rows of each: 32 inputs say its error well enough, and
all weights of a model of 8 billion are kept in some 200 MB."""

Inputs = tuple[Tensor, ...]
"""What a weight is given besides the step: x [t, k]; with experts [t]; or ids [t]."""


@dataclass
class Samples:
    """Inputs that weights were given in the reference's run, and what they said, by path."""

    calls: dict[str, list[tuple[Inputs, Tensor]]] = field(default_factory=lambda: defaultdict(list))

    def take(self, path: str, module: Any, given: tuple[Any, ...], said: Tensor) -> None:
        """Keep some rows of a call, spread evenly."""
        if len(self.calls[path]) == CALLS:
            return
        x = given[0]
        if isinstance(module, ExpertLinear):
            inputs: Inputs = (x, given[1])
        elif isinstance(module, Embedding):
            inputs = (x.flatten(),)
        elif (x.shape[-1], said.shape[-1]) == (module.n_in, module.n_out):
            inputs = (x.reshape(-1, module.n_in),)
        else:
            return  # an architecture's own way of multiplying
        count = len(inputs[0])
        rows = torch.linspace(0, count - 1, min(ROWS, count), device=x.device).long()
        some = tuple(each[rows] for each in inputs)
        kept = tuple(each.cpu() for each in some)
        self.calls[path].append((kept, times(module, some).cpu()))


@contextmanager
def watch(loaded: LoadedModel) -> Iterator[Samples]:
    """Samples of what runs while the context lasts."""
    samples = Samples()
    hooks = [
        module.register_forward_hook(partial(hear, samples, path))
        for path, module in weights(loaded.model).items()
    ]
    try:
        yield samples
    finally:
        for hook in hooks:
            hook.remove()


def hear(samples: Samples, path: str, module: Module, given: Any, said: Tensor) -> None:
    samples.take(path, module, given, said)


@torch.inference_mode()
def errors(samples: Samples, loaded: LoadedModel) -> tuple[LayerError, ...]:
    """The error of every weight that was heard and that the model has as well, worst first."""
    found = []
    for path, module in weights(loaded.model).items():
        calls = samples.calls.get(path)
        if not calls:
            continue
        with loaded.placement.lent(module):
            pairs = [(truth.float(), again(module, inputs)) for inputs, truth in calls]
        truth, said = (torch.cat(side) for side in zip(*pairs, strict=True))
        if truth.shape != said.shape:
            continue
        for name, format, span in parts(path, module):
            off = (said[:, span] - truth[:, span]).norm() / truth[:, span].norm().clamp(min=1e-30)
            found.append(LayerError(name=name, format=format, error=float(off)))
    return tuple(sorted(found, key=lambda layer: -layer.error))


def again(module: Any, inputs: Inputs) -> Tensor:
    """What a weight makes of sampled inputs, float32 on the host."""
    storage = module.held[0]
    there = tuple(
        x.to(storage.device, storage.dtype if x.is_floating_point() else None) for x in inputs
    )
    return times(module, there).float().cpu()


def times(module: Any, inputs: Inputs) -> Tensor:
    """W x of a module's storages alone, without bias and adapters: [t, n]."""
    verb = "matmul"
    if isinstance(module, Embedding | ExpertLinear):
        verb = "rows" if isinstance(module, Embedding) else "grouped"
    return torch.cat([getattr(storage, verb)(*inputs) for storage in module.held], -1)


def weights(model: Module) -> dict[str, Any]:
    """The modules that hold storages, by path."""
    kinds = Linear | Embedding | ExpertLinear
    return {path: module for path, module in model.named_modules() if isinstance(module, kinds)}


def parts(path: str, module: Any) -> Iterator[tuple[str, str, slice]]:
    """The weights of a module: their names in rules of formats, their formats and outputs."""
    if isinstance(module, Linear) and len(module.parts) > 1:
        for slot in module.slots(path):
            if slot.kind == "storage":
                storage = module.fused or module.storages[slot.part]
                yield slot.name, storage.format, module.span(slot.part)
        return
    yield path, " and ".join(dict.fromkeys(s.format for s in module.held)), slice(None)
