"""Sizes of a model's weights in each format, and the bytes that decoding a token reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from torch.nn import Module

from ostro.core.load.describe import ModelOutline
from ostro.core.load.multi_token import MTP
from ostro.core.load.quantize import Maker, QuantizationPlan, makers
from ostro.core.load.sizes import Sizes
from ostro.core.nn import CachedLayer, Embedding, Head, Linear, Model
from ostro.core.nn.experts import ExpertLinear
from ostro.core.nn.linear import WeightSlot
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import ProgressCallback

STORED = "as stored"
"""Name of the variant without quantization at load."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Size of a model's linears, embeddings and experts.

    nbytes: in memory. bits: average per weight. read: bytes read to decode one token. fallbacks:
    number of weights in another format, since their rows are not a multiple of the format's block.
    """

    name: str
    nbytes: int
    bits: float
    read: int
    fallbacks: int = 0


def variants(
    found: ModelOutline, plugins: PluginManager
) -> Iterator[tuple[str, QuantizationPlan | None]]:
    """Yield the variants to estimate: the format of --quant, or the model as stored followed by
    every format that its float weights can be quantized to.
    """
    requested = found.plan
    if requested is not None and requested.default is not None:
        yield requested.default.format.name, requested
        return
    plan = requested or QuantizationPlan(
        makers(plugins), None, sensitive=found.architecture.sensitive
    )
    yield STORED, requested
    every: list[Maker] = sorted(plan.known.values(), key=lambda m: (-m.format.bits, m.format.name))
    yield from ((maker.format.name, replace(plan, default=maker, notes={})) for maker in every)


def weigh(
    found: ModelOutline, sizes: Sizes, plugins: PluginManager, progress: ProgressCallback
) -> list[Weights]:
    """Return the variants of a model, the largest first, without those that change nothing."""
    plans, weighed = list(variants(found, plugins)), list[Weights]()
    for done, (name, plan) in enumerate(plans):
        progress("estimating formats", done, len(plans))
        weighed.append(weigh_as(name, found, sizes, plan))
    stored, *others = weighed
    changed = [other for other in others if other.nbytes != stored.nbytes]
    return sorted([stored, *changed], key=lambda weights: -weights.nbytes)


def weigh_as(
    name: str, found: ModelOutline, sizes: Sizes, plan: QuantizationPlan | None
) -> Weights:
    """Return the size of a model's weights under a plan, or as stored without a plan."""
    nbytes, read, count = 0, 0, 0
    idle = [*encoder_prefixes(found.model), f"{MTP}."]
    for path, module in found.model.named_modules():
        if not isinstance(module, Linear | Embedding | ExpertLinear):
            continue
        parts = weight_slots(path, module)
        size = sizes.nbytes(parts, plan) * copies(module) if parts else 0
        nbytes += size
        count += sum(prod(slot.shape) for slot in parts) * copies(module)
        if not any(path.startswith(prefix) for prefix in idle):
            read += bytes_read(size, path, module, found, sizes, plan)
    return Weights(
        name=name,
        nbytes=nbytes,
        bits=8 * nbytes / max(count, 1),
        read=read,
        fallbacks=len(plan.notes) if plan else 0,
    )


def weight_slots(path: str, module: Any) -> list[WeightSlot]:
    """Return the slots of a module's weights; of experts, those of the first one only."""
    slots = [slot for slot in module.slots(path) if slot.kind == "storage"]
    return [slot for slot in slots if not slot.expert]


def copies(module: Module) -> int:
    return module.experts if isinstance(module, ExpertLinear) else 1


def bytes_read(
    size: int,
    path: str,
    module: Any,
    found: ModelOutline,
    sizes: Sizes,
    plan: QuantizationPlan | None,
) -> int:
    """Return the bytes that a token reads of a module of `size` bytes: one row of an embedding,
    the selected experts, and the embedding's table for a tied head.
    """
    if isinstance(module, Embedding):
        return size // module.n
    if isinstance(module, ExpertLinear):
        # The field of all supported configs; without it all experts count.
        chosen = getattr(found.config, "num_experts_per_tok", None) or module.experts
        return size * min(chosen, module.experts) // module.experts
    if not (isinstance(module, Head) and module.tied):
        return size
    paths = {each: name for name, each in found.model.named_modules()}
    (table,) = (slot for tied in module.tied for slot in tied.slots(paths[tied]))
    return sizes.nbytes([replace(table, module=module)], plan)


def encoder_prefixes(model: Model) -> list[str]:
    """Return the path prefixes of towers and encoders: parts without a cached layer, which decoded
    tokens do not pass.
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
