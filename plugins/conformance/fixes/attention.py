"""Candidate fixes of attention: rope, scale, softcap, windows, query and key norms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ostro.core.config import rope_parameters
from ostro.core.nn import (
    Attention,
    EncoderAttention,
    LatentAttention,
    Linear,
    Model,
    Module,
    Rope,
)
from ostro.core.records import Mutant
from ostro.plugins.conformance.fixes.change import (
    Raw,
    change,
    config_numbers,
    modules_of,
    set_value,
    settings,
    wrap,
)
from ostro.plugins.conformance.mutants import retable

ATTENTIONS = (Attention, LatentAttention, EncoderAttention)
THETAS = (1e4, 1e5, 5e5, 1e6, 1e7)


def ropes(model: Model, raw: Raw) -> Iterator[Mutant]:
    found = modules_of(model, Rope)
    layouts = {
        "rope pairs adjacent instead of halves": True,
        "rope pairs halves instead of adjacent": False,
    }
    yield from settings(found, "interleaved", layouts)
    for theta in dict.fromkeys((*THETAS, *config_numbers(raw, "rope_theta"))):
        if any(rope.rule.get("rope_theta") != theta for rope in found):
            do = partial(retable, rope_theta=theta)
            yield from change(f"rope theta {theta:g}", found, do)
    for part in dict.fromkeys((0.25, 0.5, 1.0, *config_numbers(raw, "partial_rotary_factor"))):
        if any(rope.rule.get("partial_rotary_factor", 1.0) != part for rope in found):
            do = partial(retable, partial_rotary_factor=part)
            yield from change(f"rope on {part:g} of each head", found, do)
    yield from change("rope with negated angles", found, backwards)
    yield from change("no rope", modules_of(model, Attention), lambda a: setattr(a, "rope", None))
    rules = rope_parameters(raw) if found else {}
    if "rope_type" in rules and any(rope.rule != rules for rope in found):
        yield from change("rope parameters of config.json", found, lambda r: rule(r, rules))
    if any(rope.rule.get("rope_type", "default") != "default" for rope in found):
        yield from change("rope without scaling", found, partial(retable, rope_type="default"))


def backwards(rope: Rope) -> None:
    cos, sin = rope.table.chunk(2, -1)
    rope.table = torch.cat((cos, -sin), -1)


def rule(rope: Rope, rules: Mapping[str, Any]) -> None:
    rope.rule = dict(rules)
    rope.finalize(rope.context, rope.table.device)


def pairs(model: Model, raw: Raw) -> Iterator[Mutant]:
    """The assignment of query heads to key heads, and the order of heads in a fused linear."""
    grouped = [a for a in modules_of(model, Attention) if 1 < a.kv_heads < a.heads]
    yield from change("query heads use key heads in turn instead of in groups", grouped, in_turn)
    whole = [a for a in modules_of(model, Attention, EncoderAttention) if even(a.qkv)]
    yield from change("q, k and v side by side in each head", whole, per_head)


def even(linear: Linear) -> bool:
    return len(linear.parts) == 3 and len(set(linear.parts.values())) == 1


def in_turn(attention: Attention) -> None:
    heads, kv = attention.heads, attention.kv_heads
    order = torch.arange(heads).view(-1, kv).t().flatten()

    def around(attend: Callable[..., Tensor], q: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return attend(q[:, order], *args, **kwargs)[:, order.argsort()]

    wrap(attention.attend, "kernel", around)


def per_head(attention: Attention | EncoderAttention) -> None:
    def around(forward: Callable[..., Tensor], x: Tensor, step: Any) -> Tensor:
        return forward(x, step).unflatten(-1, (attention.heads, 3, -1)).transpose(1, 2).flatten(1)

    wrap(attention.qkv, "forward", around)


def head_dim(attention: Attention | LatentAttention | EncoderAttention) -> int:
    if isinstance(attention, LatentAttention):
        return attention.nope_dim + attention.rope_dim
    return attention.head_dim


def scores(model: Model, raw: Raw) -> Iterator[Mutant]:
    found = modules_of(model, *ATTENTIONS)
    hidden = raw.get("hidden_size") or 1
    values: dict[str, Any] = {
        "scores times 1 / sqrt(head_dim)": lambda a: head_dim(a) ** -0.5,
        "scores not scaled": 1.0,
        "scores times 1 / head_dim": lambda a: 1 / head_dim(a),
        "scores times 1 / sqrt(hidden_size / heads)": lambda a: (hidden / a.heads) ** -0.5,
        "scores times 1 / sqrt(hidden_size)": hidden**-0.5,
    }
    for scalar in config_numbers(raw, "query_pre_attn_scalar"):
        values["scores times 1 / sqrt(query_pre_attn_scalar)"] = scalar**-0.5
    for factor in config_numbers(raw, "attention_multiplier"):
        values["scores times attention_multiplier"] = factor
    yield from settings(found, "scale", values)
    caps = {
        f"scores capped at {cap:g}": cap
        for cap in (*config_numbers(raw, "attn_logit_softcapping"), 50)
    }
    capped = modules_of(model, Attention)
    yield from settings(capped, "softcap", {"scores not capped": 0.0, **caps})
    yield from settings(capped, "sinks", {"no sinks": None})
    causal = {"attention is causal": True, "attention is bidirectional": False}
    for name, value in causal.items():
        do = partial(see, causal=value)
        yield from change(name, modules_of(model, EncoderAttention), do)


def see(attention: EncoderAttention, *, causal: bool) -> None:
    wrap(attention.attend, "kernel", lambda attend, *args, **_: attend(*args[:5], causal=causal))


def windows(model: Model, raw: Raw) -> Iterator[Mutant]:
    found = modules_of(model, Attention)
    now = [attention.window for attention in found]
    width = max((*now, *(int(w) for w in config_numbers(raw, "sliding_window"))), default=0)
    n = len(found)
    layers: dict[str, list[int]] = {
        "no window": [0] * n,
        "windows on all layers": [width] * n,
        "windows on the even layers": [width * (i % 2 == 0) for i in range(n)],
        "windows on the odd layers": [width * (i % 2) for i in range(n)],
        "window one longer": [w + (w > 0) for w in now],
        "window one shorter": [w - (w > 1) for w in now],
        "windows of the layer before": [*now[-1:], *now[:-1]],
        "windows of the layer after": [*now[1:], *now[:1]],
    }
    if isinstance(kinds := raw.get("layer_types"), list) and len(kinds) == n:
        layers["windows by layer_types"] = [width * ("sliding" in kind) for kind in kinds]
    for name, widths in layers.items():
        if widths != now:
            wanted = dict(zip(found, widths, strict=True))
            do = partial(set_value, attribute="window", make=wanted.__getitem__)
            yield from change(name, found, do)


class NormAfter(Module):
    """Applies rope first and the query and key norms after it."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.rope, self.q_norm, self.k_norm = attention.rope, attention.q_norm, attention.k_norm

    def forward(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        assert self.rope is not None and self.q_norm is not None and self.k_norm is not None
        q, k = self.rope(q, k, positions)
        return self.q_norm(q)[0], self.k_norm(k)[0]


def heads(model: Model, raw: Raw) -> Iterator[Mutant]:
    found = [a for a in modules_of(model, Attention) if a.q_norm is not None and a.rope is not None]
    yield from change("no query and key norms", found, no_norms)
    yield from change("query and key norms after rope", found, norm_after)


def no_norms(attention: Attention) -> None:
    attention.q_norm = attention.k_norm = None


def norm_after(attention: Attention) -> None:
    after = NormAfter(attention)
    no_norms(attention)
    attention.rope = after  # type: ignore[assignment]


KINDS = (ropes, pairs, scores, windows, heads)
