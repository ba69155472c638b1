"""Candidate fixes of norms, feed-forward blocks, experts and filters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from ostro.core.nn import (
    MLP,
    Experts,
    Filters,
    Float32Router,
    GatedMLP,
    LayerNorm,
    Linear,
    Model,
    Module,
    RMSNorm,
    Router,
)
from ostro.core.nn.experts import ExpertLinear
from ostro.core.ops.act_mul.naive import ACTS
from ostro.core.ops.moe_route import RoutingRule
from ostro.core.records import Mutant
from ostro.plugins.conformance.fixes.change import (
    Raw,
    change,
    config_numbers,
    modules_of,
    settings,
    wrap,
)

NORMS = (RMSNorm, LayerNorm)
EPSILONS = (1e-5, 1e-6, 1e-8, 1e-12)
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    **ACTS,
    "relu2": lambda x: torch.relu(x).square(),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "nothing": lambda x: x,
}


def norms(model: Model, raw: Raw) -> Iterator[Mutant]:
    """All norms, and the norms of each name."""
    groups: dict[str, list[Module]] = {"all norms": modules_of(model, *NORMS)}
    for path, module in model.named_modules():
        if isinstance(module, NORMS):
            groups.setdefault(path.rpartition(".")[2], []).append(module)
    for name, found in groups.items():
        yield from change(f"{name}: weights 1 larger", found, partial(shift, by=1.0))
        yield from change(f"{name}: weights 1 smaller", found, partial(shift, by=-1.0))
        yield from change(f"{name}: omitted", found, leave_out)
        rms = [norm for norm in found if isinstance(norm, RMSNorm)]
        yield from change(f"{name}: subtract the mean first", rms, centred)


def shift(norm: RMSNorm | LayerNorm, *, by: float) -> None:
    if norm.weight is not None:
        norm.weight.data = norm.weight.data + by


def leave_out(norm: RMSNorm | LayerNorm) -> None:
    def around(forward: object, x: Tensor, residual: Tensor | None = None) -> Any:
        x = x if residual is None else x + residual
        return x, x

    wrap(norm, "forward", around)


def centred(norm: RMSNorm) -> None:
    def around(
        forward: Callable[..., tuple[Tensor, Tensor]], x: Tensor, residual: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        x = x if residual is None else x + residual
        return forward(x - x.mean(-1, keepdim=True))[0], x

    wrap(norm, "forward", around)


def epsilons(model: Model, raw: Raw) -> Iterator[Mutant]:
    keys = [key for key in raw if "eps" in key]
    values = dict.fromkeys((*config_numbers(raw, *keys), *EPSILONS))
    by_name = {f"norm epsilon {value:g}": value for value in values}
    yield from settings(modules_of(model, *NORMS), "eps", by_name)


def activations(model: Model, raw: Raw) -> Iterator[Mutant]:
    """Activations, also those that no op implements."""
    gated = [m for m in model.modules() if isinstance(m, GatedMLP | Experts)]
    for name, function in ACTIVATIONS.items():
        if any(module.act != name for module in gated):
            yield from change(f"activation {name}", gated, partial(activate, function=function))
        yield from change(
            f"activation {name}", modules_of(model, MLP), partial(other, function=function)
        )


def activate(mlp: GatedMLP | Experts, *, function: Callable[[Tensor], Tensor]) -> None:
    def act_mul(x: Tensor, act: str) -> Tensor:
        gate, up = x.chunk(2, -1)
        return function(gate) * up

    mlp.act_mul.kernel = act_mul


def other(mlp: MLP, *, function: Callable[[Tensor], Tensor]) -> None:
    def forward(x: Tensor, step: Any) -> Tensor:
        y: Tensor = mlp.fc2(function(mlp.fc1(x, step)), step)
        return y

    mlp.forward = forward  # type: ignore[method-assign]


def parts(model: Model, raw: Raw) -> Iterator[Mutant]:
    """Two parts of one size exchanged, in all fused linears that have both."""
    kinds: dict[tuple[str, str], list[Any]] = {}
    for module in model.modules():
        if isinstance(module, Linear | ExpertLinear):
            for a, b in combinations(module.parts, 2):
                if module.parts[a] == module.parts[b]:
                    kinds.setdefault((a, b), []).append(module)
    for (a, b), found in kinds.items():
        yield from change(f"{a} and {b} exchanged", found, partial(exchange, a=a, b=b))


def exchange(module: Linear | ExpertLinear, *, a: str, b: str) -> None:
    names = list(module.parts)
    order = [{a: b, b: a}.get(name, name) for name in names]

    def around(forward: Callable[..., Tensor], *args: Any) -> Tensor:
        outputs = dict(
            zip(names, forward(*args).split(list(module.parts.values()), -1), strict=True)
        )
        return torch.cat([outputs[name] for name in order], -1)

    wrap(module, "forward", around)


def routers(model: Model, raw: Raw) -> Iterator[Mutant]:
    found = modules_of(model, Router, Float32Router)
    rules: dict[str, dict[str, object]] = {
        "weights of the chosen experts sum to one": {"renormalise": True},
        "weights of the chosen experts are their scores": {"renormalise": False},
        "sigmoid over all experts": {"sigmoid": True, "renormalise": False},
        "sigmoid, the chosen weights sum to one": {"sigmoid": True, "renormalise": True},
        "softmax over all experts": {"sigmoid": False, "renormalise": False},
        "softmax over the chosen experts": {"sigmoid": False, "renormalise": True},
        "no groups of experts": {"groups": 1, "best_groups": 1},
    }
    for factor in config_numbers(raw, "routed_scaling_factor"):
        rules[f"expert weights times {factor:g}"] = {"factor": factor}
    for name, fields in rules.items():
        yield from settings(found, "rule", {name: partial(changed_rule, fields=fields)})
    yield from settings(
        found,
        "rule",
        {
            "one expert more for each row": lambda r: r.rule._replace(
                top=min(r.rule.top + 1, r.n_out)
            ),
            "one expert fewer for each row": lambda r: r.rule._replace(top=max(r.rule.top - 1, 1)),
        },
    )
    yield from change("expert weights of one", found, alike)
    yield from settings(
        found, "e_score_correction_bias", {"no correction bias of the router": None}
    )
    yield from settings(modules_of(model, Router), "bias", {"no bias of the router": None})


def changed_rule(router: Router | Float32Router, fields: Mapping[str, Any]) -> RoutingRule:
    return router.rule._replace(**fields)


def alike(router: Router | Float32Router) -> None:
    def around(choose: Callable[..., tuple[Tensor, Tensor]], *args: Any) -> tuple[Tensor, Tensor]:
        chosen, weights = choose(*args)
        return chosen, torch.ones_like(weights)

    wrap(router, "choose", around)


def filters(model: Model, raw: Raw) -> Iterator[Mutant]:
    yield from change("filters reversed", modules_of(model, Filters), turn)
    yield from settings(modules_of(model, Filters), "bias", {"no biases on the filters": None})


def turn(filter: Filters) -> None:
    filter.weight.data = filter.weight.data.flip(-1).contiguous()


KINDS = (norms, epsilons, activations, parts, routers, filters)
