"""Error of each weight alone: its outputs compared with the reference's on the same inputs."""

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
"""Sampled calls of a weight, and sampled rows of each call: 32 inputs estimate the error well
enough, and the samples of an 8B model take about 200 MB."""

Inputs = tuple[Tensor, ...]
"""Inputs of a weight: x [t, k]; x and the expert [t] of each row; or token ids [t]."""


@dataclass
class Samples:
    """Sampled inputs and outputs of the reference's weights, by path."""

    calls: dict[str, list[tuple[Inputs, Tensor]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, path: str, module: Any, given: tuple[Any, ...], output: Tensor) -> None:
        """Store some rows of a call, evenly spaced."""
        if len(self.calls[path]) == CALLS:
            return
        x = given[0]
        if isinstance(module, ExpertLinear):
            inputs: Inputs = (x, given[1])
        elif isinstance(module, Embedding):
            inputs = (x.flatten(),)
        elif (x.shape[-1], output.shape[-1]) == (module.n_in, module.n_out):
            inputs = (x.reshape(-1, module.n_in),)
        else:
            return  # the architecture multiplies by this weight in its own way
        count = len(inputs[0])
        rows = torch.linspace(0, count - 1, min(ROWS, count), device=x.device).long()
        some = tuple(each[rows] for each in inputs)
        kept = tuple(each.cpu() for each in some)
        self.calls[path].append((kept, multiply(module, some).cpu()))


@contextmanager
def record_samples(loaded: LoadedModel) -> Iterator[Samples]:
    """Record samples of all forward calls within the block."""
    samples = Samples()
    hooks = [
        module.register_forward_hook(partial(record, samples, path))
        for path, module in weights(loaded.model).items()
    ]
    try:
        yield samples
    finally:
        for hook in hooks:
            hook.remove()


def record(samples: Samples, path: str, module: Module, given: Any, output: Tensor) -> None:
    samples.add(path, module, given, output)


@torch.inference_mode()
def layer_errors(samples: Samples, loaded: LoadedModel) -> tuple[LayerError, ...]:
    """Return the error of every weight that has samples, the largest first."""
    found = []
    for path, module in weights(loaded.model).items():
        calls = samples.calls.get(path)
        if not calls:
            continue
        with loaded.placement.on_device(module):
            pairs = [(reference.float(), recompute(module, inputs)) for inputs, reference in calls]
        reference, output = (torch.cat(side) for side in zip(*pairs, strict=True))
        if reference.shape != output.shape:
            continue
        for name, format, span in parts(path, module):
            expected = reference[:, span]
            error = (output[:, span] - expected).norm() / expected.norm().clamp(min=1e-30)
            found.append(LayerError(name=name, format=format, error=float(error)))
    return tuple(sorted(found, key=lambda layer: -layer.error))


def recompute(module: Any, inputs: Inputs) -> Tensor:
    """Return the outputs of a weight for sampled inputs, float32 on the host."""
    storage = module.active_storages[0]
    there = tuple(
        x.to(storage.device, storage.dtype if x.is_floating_point() else None) for x in inputs
    )
    return multiply(module, there).float().cpu()


def multiply(module: Any, inputs: Inputs) -> Tensor:
    """Return W x [t, n] of a module's storages, without bias and adapters."""
    verb = "matmul"
    if isinstance(module, Embedding | ExpertLinear):
        verb = "rows" if isinstance(module, Embedding) else "grouped"
    return torch.cat([getattr(storage, verb)(*inputs) for storage in module.active_storages], -1)


def weights(model: Module) -> dict[str, Any]:
    """Return the modules that have storages, by path."""
    kinds = Linear | Embedding | ExpertLinear
    return {path: module for path, module in model.named_modules() if isinstance(module, kinds)}


def parts(path: str, module: Any) -> Iterator[tuple[str, str, slice]]:
    """Yield the weights of a module: name in --topology rules, format, and slice of outputs."""
    if isinstance(module, Linear) and len(module.parts) > 1:
        for slot in module.slots(path):
            if slot.kind == "storage":
                storage = module.fused or module.storages[slot.part]
                yield slot.name, storage.format, module.span(slot.part)
        return
    yield path, " and ".join(dict.fromkeys(s.format for s in module.active_storages)), slice(None)
