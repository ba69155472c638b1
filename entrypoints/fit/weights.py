"""What the weights of a model take in a format, and how much of that each token reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from torch.nn import Module

from ostro.core.load.describe import ModelOutline
from ostro.core.load.quantize import Maker, QuantizationPlan, makers
from ostro.core.load.sizes import Sizes
from ostro.core.nn import CachedLayer, Embedding, Head, Linear, Model
from ostro.core.nn.experts import ExpertLinear
from ostro.core.nn.linear import Slot
from ostro.core.plugins.manager import PluginManager

STORED = "as stored"
"""The name of what is not quantized at load."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """A model's linears, embeddings and experts: bytes in memory, bits of each weight, and bytes
    that are read to draw one token.
    """

    name: str
    nbytes: int
    bits: float
    read: int


def variants(
    found: ModelOutline, plugins: PluginManager
) -> Iterator[tuple[str, QuantizationPlan | None]]:
    """What is weighed: the format that was asked for; or the model as it is stored, and every
    format that its floats can be brought to.
    """
    asked = found.plan
    if asked is not None and asked.default is not None:
        yield asked.default.format.name, asked
        return
    plan = asked or QuantizationPlan(makers(plugins), None, sensitive=found.architecture.sensitive)
    yield STORED, asked
    every: list[Maker] = sorted(plan.known.values(), key=lambda m: (-m.format.bits, m.format.name))
    yield from ((maker.format.name, replace(plan, default=maker, notes={})) for maker in every)


def weigh(found: ModelOutline, sizes: Sizes, plugins: PluginManager) -> list[Weights]:
    """The variants of a model, the largest first; those that change nothing are left out."""
    stored, *others = (weigh_as(name, found, sizes, p) for name, p in variants(found, plugins))
    changed = [other for other in others if other.nbytes != stored.nbytes]
    return sorted([stored, *changed], key=lambda weights: -weights.nbytes)


def weigh_as(
    name: str, found: ModelOutline, sizes: Sizes, plan: QuantizationPlan | None
) -> Weights:
    """The weights of a model as a plan has them, or as they are stored."""
    nbytes, read, count = 0, 0, 0
    idle = asides(found.model)
    for path, module in found.model.named_modules():
        if not isinstance(module, Linear | Embedding | ExpertLinear):
            continue
        parts = places(path, module)
        size = sizes.of(parts, plan) * copies(module) if parts else 0
        nbytes += size
        count += sum(prod(slot.shape) for slot in parts) * copies(module)
        if not any(path.startswith(aside) for aside in idle):
            read += share(size, path, module, found, sizes, plan)
    return Weights(name=name, nbytes=nbytes, bits=8 * nbytes / max(count, 1), read=read)


def places(path: str, module: Any) -> list[Slot]:
    """The slots of a module's weights; those of its first expert stand for all."""
    slots = [slot for slot in module.slots(path) if slot.kind == "storage"]
    return [slot for slot in slots if not slot.expert]


def copies(module: Module) -> int:
    return module.experts if isinstance(module, ExpertLinear) else 1


def share(
    size: int,
    path: str,
    module: Any,
    found: ModelOutline,
    sizes: Sizes,
    plan: QuantizationPlan | None,
) -> int:
    """What a token reads of a module that takes `size` bytes: of an embedding one row, of experts
    those that it is sent to, of a tied head the embedding.
    """
    if isinstance(module, Embedding):
        return size // module.n
    if isinstance(module, ExpertLinear):
        # What every config of experts calls them; where one does not, all count.
        chosen = getattr(found.config, "num_experts_per_tok", None) or module.experts
        return size * min(chosen, module.experts) // module.experts
    if not (isinstance(module, Head) and module.tied):
        return size
    paths = {each: name for name, each in found.model.named_modules()}
    (table,) = (slot for tied in module.tied for slot in tied.slots(paths[tied]))
    return sizes.of([replace(table, module=module)], plan)


def asides(model: Model) -> list[str]:
    """How the paths of what no token passes begin: towers and encoders, whose layers remember
    nothing.
    """
    found = []
    for name in model.layers:
        parent = name.rpartition(".")[0]
        for path in (name, parent):
            try:
                part = model.get_submodule(path) if path else None
            except AttributeError:
                continue  # a tower that this config does not have
            if part is not None and not any(isinstance(m, CachedLayer) for m in part.modules()):
                found.append(f"{path}.")
    return found
