"""Candidate fixes of embeddings, logits, residuals, biases, flags and kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ostro.core.nn import Embedding, Experts, Head, Linear, Model, Module
from ostro.core.ops import Op
from ostro.core.records import Mutant, resolve
from ostro.plugins.conformance.fixes.change import (
    Raw,
    change,
    config_numbers,
    modules_of,
    set_value,
    settings,
    wrap,
)

ENDS = ("o_proj", "down_proj", "fc2")
"""Linears whose output is added to the residual."""

KNOWN = ("training", "interleaved")
"""Flags of torch, and flags that other changes set."""


def scaled(module: Module, *, by: float, method: str = "forward") -> None:
    wrap(module, method, lambda forward, *args: forward(*args) * by)


def embeddings(model: Model, raw: Raw) -> Iterator[Mutant]:
    vocab = max((e.n for e in modules_of(model, Embedding)), default=0)
    tokens = [e for e in modules_of(model, Embedding) if e.n == vocab]
    d = tokens[0].d if tokens else 1
    factors = {"times sqrt(d)": d**0.5, "divided by sqrt(d)": d**-0.5}
    for factor in config_numbers(raw, "embedding_multiplier", "scale_emb"):
        factors[f"times {factor:g}"] = factor
    for name, factor in factors.items():
        yield from change(f"embeddings {name}", tokens, partial(scaled, by=factor))
    positions = [
        m for p, m in model.named_modules() if isinstance(m, Embedding) and "position" in p
    ]
    for by in (1, 2, -1):
        yield from change(f"positions {by:+d}", positions, partial(moved, by=by))


def moved(embedding: Embedding, *, by: int) -> None:
    def around(forward: Callable[..., Tensor], ids: Tensor, step: Any) -> Tensor:
        return forward((ids + by).clamp(0, embedding.n - 1), step)

    wrap(embedding, "forward", around)


def outputs(model: Model, raw: Raw) -> Iterator[Mutant]:
    d = raw.get("hidden_size") or 1
    factors = {"divided by sqrt(d)": d**-0.5, "times sqrt(d)": d**0.5}
    factors |= {f"times {factor:g}": factor for factor in config_numbers(raw, "logit_scale")}
    factors |= {
        f"divided by {divisor:g}": 1 / divisor for divisor in config_numbers(raw, "logits_scaling")
    }
    for name, factor in factors.items():
        do = partial(scaled, by=factor, method="logits")
        yield from change(f"logits {name}", [model], do)
    capped = [model] if getattr(model, "softcap", 0.0) else []
    yield from change("logits not capped", capped, lambda m: setattr(m, "softcap", 0.0))
    for cap in dict.fromkeys((*config_numbers(raw, "final_logit_softcapping"), 30.0)):
        if getattr(model, "softcap", 0.0) != cap:
            yield from change(f"logits capped at {cap:g}", [model], partial(capped_at, cap=cap))
    table = next(iter(modules_of(model, Embedding)), None)
    for head in modules_of(model, Head):
        if table is not None and not head.tied and (table.n, table.d) == (head.n_out, head.n_in):
            yield from change(
                "the head is tied to the embedding", [head], partial(tie, table=table)
            )


def tie(head: Head, *, table: Embedding) -> None:
    head.fused = table.storage


def capped_at(model: Model, *, cap: float) -> None:
    if getattr(model, "softcap", 0.0):
        model.softcap = cap  # type: ignore[assignment]
    else:
        wrap(model, "logits", lambda logits, *args: torch.tanh(logits(*args) / cap) * cap)


def residuals(model: Model, raw: Raw) -> Iterator[Mutant]:
    ends = [m for p, m in model.named_modules() if isinstance(m, Experts) or p.endswith(ENDS)]
    for factor in config_numbers(raw, "residual_multiplier"):
        name = f"residual branches times {factor:g}"
        yield from change(name, ends, partial(scaled, by=factor))


def biases(model: Model, raw: Raw) -> Iterator[Mutant]:
    groups: dict[str, list[Linear]] = {}
    for path, module in model.named_modules():
        if isinstance(module, Linear) and module.bias is not None:
            groups.setdefault(f"no bias on {path.rpartition('.')[2]}", []).append(module)
            groups.setdefault("no biases", []).append(module)
    for name, found in groups.items():
        yield from settings(found, "bias", {name: None})


def flags(model: Model, raw: Raw) -> Iterator[Mutant]:
    """Each boolean attribute of a module, inverted."""
    found: dict[str, list[Module]] = {}
    for module in model.modules():
        for attribute, value in vars(module).items():
            if isinstance(value, bool) and attribute not in KNOWN and attribute[0] != "_":
                name = f"{type(module).__name__}.{attribute} = {not value}"
                found.setdefault(name, []).append(module)
    for name, modules in found.items():
        attribute = name.split()[0].partition(".")[2]
        flip = partial(set_value, attribute=attribute, make=partial(opposite, attribute=attribute))
        yield from change(name, modules, flip)


def numbers(model: Model, raw: Raw) -> Iterator[Mutant]:
    """Each float attribute of a family's modules, set to each float of config.json."""
    known = {key: value for key, value in raw.items() if isinstance(value, float)}
    kinds: dict[tuple[type, str], list[Module]] = {}
    for module in model.modules():
        if not type(module).__module__.startswith("ostro.core."):
            for attribute, value in vars(module).items():
                if isinstance(value, float):
                    kinds.setdefault((type(module), attribute), []).append(module)
    for (kind, attribute), modules in kinds.items():
        values = {f"{kind.__name__}.{attribute} = {key}": known[key] for key in known}
        yield from settings(modules, attribute, values)


def opposite(module: Module, *, attribute: str) -> bool:
    return not getattr(module, attribute)


def kernels(model: Model, raw: Raw) -> Iterator[Mutant]:
    """The naive version of each operation, in place of its kernel."""
    groups: dict[str, list[Op]] = {}
    for module in model.modules():
        for op in vars(module).values():
            if isinstance(op, Op) and op.kernel is not resolve(op.kernels[-1].call):
                groups.setdefault(f"the naive version of {op.name}", []).append(op)
    for name, found in groups.items():
        yield from change(name, found, use_naive)


def use_naive(op: Op) -> None:
    op.kernel = resolve(op.kernels[-1].call)


KINDS = (embeddings, outputs, residuals, biases, flags, numbers, kernels)
