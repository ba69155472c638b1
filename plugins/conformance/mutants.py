"""Mutants: deliberate porting bugs that every parity test must detect.

A passing parity test proves little: with default initialisation a wrong rope or a wrong scale
still agrees to three digits. Each bug is therefore applied to our model after loading, and the test
must fail. `generic` selects the bugs by the modules of a model; a family declares further ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor

from ostro.core.nn import (
    Attention,
    CachedLayer,
    CrossAttention,
    Embedding,
    EncoderAttention,
    EncoderModel,
    Experts,
    Filters,
    GatedMLP,
    LatentAttention,
    LayerNorm,
    Linear,
    Model,
    RMSNorm,
    Rope,
    Router,
)
from ostro.core.ops import Fused
from ostro.core.ops.moe_route import RoutingRule
from ostro.core.records import Architecture, Mutant, resolve
from ostro.plugins.conformance.golden import SPREADS

M = TypeVar("M")
SMALL = SPREADS[1]
"""The standard deviation of weights at which a wrong epsilon shows."""


def of(record: Architecture, model: Model) -> list[Mutant]:
    """The mutants of a model: the generic ones and those of its record.

    A mutant of the record replaces the generic one of the same name.
    """
    named = record.conformance.mutants
    own = resolve(named)() if named else ()
    return list({mutant.name: mutant for mutant in (*generic(model), *own)}.values())


def fused(model: Model) -> list[Fused]:
    """A model's fused operations."""
    return [op for m in model.modules() for op in vars(m).values() if isinstance(op, Fused)]


def unfuse(model: Model) -> None:
    """Disable fused kernels: they bypass the modules that mutants change."""
    for op in fused(model):
        op.on = False


def each(model: Model, kind: type[M], change: Callable[[M], object]) -> None:
    """Apply a change to every module of a class. Raises LookupError if there is none."""
    found = [module for module in model.modules() if isinstance(module, kind)]
    if not found:
        raise LookupError(f"the model has no {kind.__name__}: the mutant does not apply")
    for module in found:
        change(module)


def retable(rope: Rope, **parameters: Any) -> None:
    rope.rule.update(parameters)
    rope.finalize(rope.context, rope.table.device)


def rope_theta(model: Model) -> None:
    each(model, Rope, lambda r: retable(r, rope_theta=r.rule["rope_theta"] * 50))


def rope_layout(model: Model) -> None:
    def flip(rope: Rope) -> None:
        rope.interleaved = not rope.interleaved

    each(model, Rope, flip)


def attention_scale(model: Model) -> None:
    each(model, Attention, lambda a: setattr(a, "scale", a.scale * 1.1))


def norm_eps(model: Model) -> None:
    each(model, RMSNorm, lambda n: setattr(n, "eps", n.eps * 10))


def norm_weight(model: Model) -> None:
    each(model, RMSNorm, lambda n: n.weight.data.sub_(1))


def activation(model: Model) -> None:
    def swap(mlp: GatedMLP) -> None:
        mlp.act = "gelu" if mlp.act == "silu" else "silu"

    each(model, GatedMLP, swap)


def gate_and_up(model: Model) -> None:
    def swap(mlp: GatedMLP) -> None:
        half = mlp.gate_up.n_out // 2
        forward = mlp.gate_up.forward
        mlp.gate_up.forward = lambda x, step: forward(x, step).roll(half, -1)  # type: ignore[method-assign]

    each(model, GatedMLP, swap)


def window(by: int) -> Callable[[Model], None]:
    def change(attention: Attention) -> None:
        if attention.window:
            attention.window += by

    return lambda model: each(model, Attention, change)


def no_window(model: Model) -> None:
    each(model, Attention, lambda a: setattr(a, "window", 0))


def all_windows(model: Model) -> None:
    widths = [a.window for a in model.modules() if isinstance(a, Attention)]
    each(model, Attention, lambda a: setattr(a, "window", max(widths)))


def no_head_norms(model: Model) -> None:
    each(model, Attention, lambda a: a.__dict__["_modules"].update(q_norm=None, k_norm=None))


def no_softcap(model: Model) -> None:
    each(model, Attention, lambda a: setattr(a, "softcap", 0.0))


def filters_backwards(model: Model) -> None:
    def flip(filters: Filters) -> None:
        filters.weight.data = filters.weight.data.flip(-1).contiguous()

    each(model, Filters, flip)


def no_bias(model: Model) -> None:
    def drop(linear: Linear) -> None:
        linear.bias = None

    each(model, Linear, drop)


def embedding_scale(model: Model) -> None:
    def scale(embedding: Embedding) -> None:
        forward = embedding.forward
        embedding.forward = lambda ids, step: forward(ids, step) * 1.05  # type: ignore[method-assign]

    each(model, Embedding, scale)


def encoder_scale(model: Model) -> None:
    each(model, EncoderAttention, lambda a: setattr(a, "scale", a.scale * 1.1))


def cross_scale(model: Model) -> None:
    each(model, CrossAttention, lambda a: setattr(a, "scale", a.scale * 1.1))


def latent_scale(model: Model) -> None:
    each(model, LatentAttention, lambda a: setattr(a, "scale", a.scale * 1.1))


def layer_norm_eps(model: Model) -> None:
    each(model, LayerNorm, lambda n: setattr(n, "eps", 0.1))


def no_sinks(model: Model) -> None:
    each(model, Attention, lambda a: setattr(a, "sinks", None))


def no_filter_bias(model: Model) -> None:
    each(model, Filters, lambda f: setattr(f, "bias", None))


def other_softmax(model: Model) -> None:
    change_rule(model, lambda rule: rule._replace(renormalise=not rule.renormalise))


def choices(by: int) -> Callable[[Model], None]:
    return lambda model: change_rule(model, lambda rule: rule._replace(top=rule.top + by))


def change_rule(model: Model, change: Callable[[RoutingRule], RoutingRule]) -> None:
    each(model, Router, lambda r: setattr(r, "rule", change(r.rule)))


def expert_activation(model: Model) -> None:
    each(model, Experts, lambda e: setattr(e, "act", "gelu" if e.act == "silu" else "silu"))


def external_scale(model: Model) -> None:
    """Scale the scores of attention that receives its scale as an argument."""
    for module in externally_scaled(model):
        attend = module.attend
        attend.kernel = with_scale(attend.kernel)


def with_scale(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda q, k, v, batch, scale, **more: run(q, k, v, batch, scale * 1.1, **more)


def externally_scaled(model: Model) -> list[Any]:
    """Attention without a scale attribute: that of the transformers backend."""
    found: list[Any] = [module for module in model.modules() if isinstance(module, CachedLayer)]
    return [each for each in found if hasattr(each, "attend") and not hasattr(each, "scale")]


def first_positions(model: EncoderModel) -> None:
    hidden = model.hidden
    model.hidden = lambda step: hidden(replace(step, positions=step.positions * 0))  # type: ignore[method-assign]


def generic(model: Model) -> Iterator[Mutant]:
    """The generic mutants that apply to the modules of a model."""
    for mutant, kind, has in GENERIC:
        found = [module for module in model.modules() if isinstance(module, kind)]
        if kind in (GatedMLP, Experts):  # a family may override the computation in a subclass
            found = [module for module in found if type(module) is kind]
        if any(not has or is_present(getattr(module, has)) for module in found):
            yield mutant
    if externally_scaled(model):
        yield Mutant(name=SCORES.name, apply=external_scale)
        yield Mutant(name="all positions are zero", apply=first_positions)


def is_present(value: Any) -> bool:
    return isinstance(value, Tensor) or bool(value)


def decoder() -> Iterator[Mutant]:
    """The mutants of decoders with rope, RMS norms and gated MLPs."""
    yield Mutant(name="rope theta x 50", apply=rope_theta)
    yield Mutant(name="rope pairs adjacent instead of halves", apply=rope_layout)
    yield Mutant(name="scores scaled by 1.1", apply=attention_scale)
    yield Mutant(name="norm epsilon x 10", apply=norm_eps, std=SMALL)
    yield Mutant(name="norm weights off by 1", apply=norm_weight)
    yield Mutant(name="another activation", apply=activation)
    yield Mutant(name="gate and up exchanged", apply=gate_and_up)


def windowed() -> Iterator[Mutant]:
    """The mutants of families with sliding windows."""
    yield Mutant(name="window one longer", apply=window(1))
    yield Mutant(name="window one shorter", apply=window(-1))
    yield Mutant(name="no window", apply=no_window)


THETA, LAYOUT, SCORES, EPS, WEIGHT, ACTIVATION, SWAP = decoder()
LONGER, SHORTER, ENDLESS = windowed()

GENERIC: tuple[tuple[Mutant, type, str], ...] = (
    (THETA, Rope, ""),
    (LAYOUT, Rope, ""),
    (SCORES, Attention, ""),
    (Mutant(name=SCORES.name, apply=latent_scale), LatentAttention, ""),
    (Mutant(name="scores of encoders scaled by 1.1", apply=encoder_scale), EncoderAttention, ""),
    (Mutant(name="scores across scaled by 1.1", apply=cross_scale), CrossAttention, ""),
    (EPS, RMSNorm, ""),
    (WEIGHT, RMSNorm, ""),
    (Mutant(name="layer norm epsilon 0.1", apply=layer_norm_eps, std=SMALL), LayerNorm, ""),
    (ACTIVATION, GatedMLP, ""),
    (SWAP, GatedMLP, ""),
    (LONGER, Attention, "window"),
    (SHORTER, Attention, "window"),
    (ENDLESS, Attention, "window"),
    (Mutant(name="no norms on the heads", apply=no_head_norms), Attention, "q_norm"),
    (Mutant(name="no cap on the scores", apply=no_softcap), Attention, "softcap"),
    (Mutant(name="no sinks", apply=no_sinks), Attention, "sinks"),
    (Mutant(name="no biases on the linears", apply=no_bias), Linear, "bias"),
    (Mutant(name="filters backwards", apply=filters_backwards), Filters, ""),
    (Mutant(name="no biases on the filters", apply=no_filter_bias), Filters, "bias"),
    (
        Mutant(name="softmax over all experts instead of the chosen", apply=other_softmax),
        Router,
        "",
    ),
    (Mutant(name="one expert fewer", apply=choices(-1)), Router, ""),
    (Mutant(name="one expert more", apply=choices(1)), Router, ""),
    (Mutant(name="another activation of the experts", apply=expert_activation), Experts, ""),
)
"""Mutants, each with the module class and the nonzero attribute that it needs."""
