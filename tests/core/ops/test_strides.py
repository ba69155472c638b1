"""Kernels take every layout of their inputs: columns that are contiguous, steps, repeated rows and
rows that start anywhere; or they refuse it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from gpu.batches import Heads, paged, randn, states
from torch import Tensor

from ostro.core.errors import InvalidTensor, Unsupported
from ostro.core.ops.moe_route import RoutingRule
from ostro.core.ops.penalize import Penalties
from ostro.core.ops.sample import Draw
from ostro.core.records import resolve
from ostro.plugins.conformance.kernels import DEVICE

ROWS, D = 5, 64


def columns(x: Tensor) -> Tensor:
    """The last two dimensions as of a transposed tensor: the convolution of a vision tower."""
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


def steps(x: Tensor) -> Tensor:
    """Every second element of wider rows."""
    wide = x.new_zeros(*x.shape[:-1], 2 * x.shape[-1])
    wide[..., ::2] = x
    return wide[..., ::2]


def repeated(x: Tensor) -> Tensor:
    """One row for all rows."""
    return x[:1].expand_as(x)


def part(x: Tensor) -> Tensor:
    """A part of wider rows that begins at their third element."""
    wide = x.new_zeros(*x.shape[:-1], x.shape[-1] + 5)
    wide[..., 3:-2] = x
    return wide[..., 3:-2]


LAYOUTS = (columns, steps, repeated, part)


@dataclass(frozen=True)
class Case:
    """A call of an operation.

    `kernels` maps devices to functions; "naive" is the reference. `rows` and `vectors` are the
    arguments whose layouts are tested; `changed` is an argument that the call changes in place.
    """

    kernels: Mapping[str, str]
    arguments: Callable[[], dict[str, Any]]
    rows: str
    vectors: str = ""
    changed: str = ""


def op(name: str, function: str, *devices: str) -> dict[str, str]:
    modules = {"cuda": "triton", "cpu": "native"}
    package = f"ostro.core.ops.{name}"
    kernels = {device: f"{package}.{modules[device]}:{function}" for device in devices}
    return kernels | {"naive": f"{package}.naive:{function}"}


def fused(package: str, function: str) -> dict[str, str]:
    package = f"ostro.architectures.{package}"
    return {"cuda": f"{package}.kernels:{function}", "naive": f"{package}.naive:{function}"}


def attention() -> dict[str, Any]:
    q, k, v, batch, scale = paged([3, 1, 1], [3, 20, 1], Heads(4, 2, 16, 16), torch.float32)
    k, v = k.nan_to_num(), v.nan_to_num()
    return {"q": q, "k_cache": k, "v_cache": v, "batch": batch, "scale": scale}


def delta_rule() -> dict[str, Any]:
    where = states([2, 3])
    return {
        "q": randn(ROWS, 2, 16), "k": randn(ROWS, 2, 16), "v": randn(ROWS, 4, 16),
        "b": randn(ROWS, 4), "a": randn(ROWS, 4), "rate": -randn(4).exp(), "dt_bias": randn(4),
        "state": randn(4, 4, 16, 16), "places": where,
    }  # fmt: skip


def scan() -> dict[str, Any]:
    where = states([2, 3])
    return {
        "x": randn(ROWS, 4, 16), "dt": randn(ROWS, 4), "a": -randn(4).exp(),
        "b": randn(ROWS, 2, 16), "c": randn(ROWS, 2, 16), "d": randn(4), "dt_bias": randn(4),
        "limit": (0.0, math.inf), "state": randn(4, 4, 16, 16), "places": where,
    }  # fmt: skip


def kv_write() -> dict[str, Any]:
    slots = torch.tensor([7, 3, -1, 12, 0], device=DEVICE)
    caches = {"k_cache": randn(2, 2, 8, 16), "v_cache": randn(2, 2, 8, 16)}
    return {"k": randn(ROWS, 2, 16), "v": randn(ROWS, 2, 16), **caches, "slots": slots}


def lora() -> dict[str, Any]:
    ints = {"dtype": torch.int32, "device": DEVICE}
    return {
        "x": randn(ROWS, D), "y": randn(ROWS, 48), "a": randn(3, 2, 16, D), "b": randn(3, 16, 48),
        "widths": (32, 16), "pages": torch.tensor([[-1], [2]], **ints),
        "scales": torch.ones(2, 1, device=DEVICE), "mixture": torch.tensor([0, 1, 1, 0, 1], **ints),
    }  # fmt: skip


def draw() -> dict[str, Any]:
    def filled(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.full((ROWS,), value, dtype=dtype, device=DEVICE)

    position = torch.arange(ROWS, device=DEVICE)
    params = Draw(
        filled(0.8), filled(20, torch.int32), filled(0.9), filled(0.01), filled(1.0),
        filled(7, torch.int64), position,
    )  # fmt: skip
    return {"logits": 3 * randn(ROWS, 300), "params": params}


def penalties() -> dict[str, Any]:
    rows = torch.arange(ROWS, device=DEVICE)
    return {
        "logits": randn(ROWS, D),
        "params": Penalties(
            counts=torch.randint(0, 3, (ROWS, D), device=DEVICE).int(),
            seen=torch.rand(ROWS, D, device=DEVICE) < 0.5,
            repetition=torch.rand(ROWS, device=DEVICE) + 0.5,
            presence=randn(ROWS), frequency=randn(ROWS),
            bias_rows=rows, bias_ids=rows + 3, bias_values=randn(ROWS),
        ),
    }  # fmt: skip


def norm_rope_write() -> dict[str, Any]:
    case = kv_write()
    pages = Pages(case["k_cache"], case["v_cache"], Slots(case["slots"]))
    return {
        "q": randn(ROWS, 4, 16), "k": case["k"], "v": case["v"], "q_weight": randn(16),
        "k_weight": randn(16), "eps": 1e-6, "positions": torch.arange(ROWS, device=DEVICE)[None],
        "table": randn(9, 16), "pages": pages,
    }  # fmt: skip


@dataclass(frozen=True)
class Slots:
    slots: Tensor


@dataclass(frozen=True)
class Pages:
    k: Tensor
    v: Tensor
    batch: Slots

    def write(self, k: Tensor, v: Tensor) -> None:
        write: Any = resolve("ostro.core.ops.kv_write.naive:kv_write")
        write(k, v, self.k, self.v, self.batch.slots)


def bits(rows: int) -> Tensor:
    low, high = -(1 << 31), (1 << 31) - 1
    return torch.randint(low, high, (rows, 2), device=DEVICE).int()


CASES = {
    "act_mul": Case(
        op("act_mul", "act_mul", "cuda", "cpu"), lambda: {"x": randn(ROWS, D), "act": "silu"}, "x"
    ),
    "attention": Case(op("attention", "attention", "cuda", "cpu"), attention, "q k_cache v_cache"),
    "causal_conv": Case(
        op("causal_conv", "causal_conv", "cuda", "cpu"),
        lambda: {
            "x": randn(ROWS, D), "weight": randn(D, 4), "bias": randn(D),
            "state": randn(4, D, 3), "places": states([2, 3]), "act": "silu",
        },
        "x weight",
        "bias",
        "state",
    ),
    "delta_rule": Case(
        op("delta_rule", "delta_rule", "cuda", "cpu"),
        delta_rule,
        "q k v b a",
        "rate dt_bias",
        "state",
    ),
    "grouped_matmul": Case(
        op("grouped_matmul", "grouped", "cuda", "cpu"),
        lambda: {
            "x": randn(ROWS, D), "weight": randn(3, 32, D),
            "expert_of_row": torch.tensor([0, 0, 1, 2, 2], device=DEVICE),
        },
        "x weight",
    ),
    "kv_write": Case(op("kv_write", "kv_write", "cuda", "cpu"), kv_write, "k v", changed="k_cache"),
    "layer_norm": Case(
        op("layer_norm", "layer_norm", "cuda", "cpu"),
        lambda: {
            "x": randn(ROWS, 3, D), "weight": randn(D), "bias": randn(D), "eps": 1e-6,
            "residual": randn(ROWS, 3, D),
        },
        "x residual",
        "weight bias",
    ),
    "lora": Case(op("lora", "lora", "cuda", "cpu"), lora, "x y a b", changed="y"),
    "mask": Case(
        op("mask", "mask", "cuda"),
        lambda: {
            "logits": randn(ROWS, D), "rows": torch.tensor([3, 1], device=DEVICE), "bits": bits(2),
        },
        "logits bits",
        changed="logits",
    ),
    "penalize": Case(op("penalize", "penalize", "cuda"), penalties, "logits", changed="logits"),
    "rms_norm": Case(
        op("rms_norm", "rms_norm", "cuda", "cpu"),
        lambda: {
            "x": randn(ROWS, 3, D), "weight": randn(D), "eps": 1e-6, "residual": randn(ROWS, 3, D),
        },
        "x residual",
        "weight",
    ),
    "rope": Case(
        op("rope", "rope", "cuda", "cpu"),
        lambda: {
            "q": randn(ROWS, 4, 16), "k": randn(ROWS, 2, 16),
            "positions": torch.arange(ROWS, device=DEVICE)[None], "table": randn(9, 16),
        },
        "q k table",
        "positions",
    ),
    "route": Case(
        op("moe_route", "route", "cuda", "cpu"),
        lambda: {"logits": randn(ROWS, 8), "rule": RoutingRule(2, True), "bias": randn(8)},
        "logits",
        "bias",
    ),
    "sort": Case(
        op("moe_route", "sort", "cuda", "cpu"),
        lambda: {"experts": torch.randint(0, 8, (ROWS, 2), device=DEVICE), "count": 8},
        "experts",
    ),
    "sample": Case(op("sample", "sample", "cuda"), draw, "logits"),
    "scan": Case(op("scan", "scan", "cuda", "cpu"), scan, "x dt b c", "a d dt_bias", "state"),
    "flux modulate": Case(
        fused("flux", "modulate"),
        lambda: {"x": randn(6, D), "shift": randn(2, D), "scale": randn(2, D), "eps": 1e-6},
        "x shift scale",
    ),
    "flux gate_modulate": Case(
        fused("flux", "gate_modulate"),
        lambda: {
            "x": randn(6, D), "y": randn(6, D), "gate": randn(2, D), "shift": randn(2, D),
            "scale": randn(2, D), "eps": 1e-6,
        },
        "x y gate shift scale",
    ),
    "flux gate_add": Case(
        fused("flux", "gate_add"),
        lambda: {"x": randn(6, D), "y": randn(6, D), "gate": randn(2, D)},
        "x y gate",
    ),
    "norm_add_norm": Case(
        fused("gemma2", "norm_add_norm"),
        lambda: {
            "x": randn(ROWS, D), "residual": randn(ROWS, D), "after": randn(D),
            "before": randn(D), "eps": 1e-6,
        },
        "x residual",
        "after before",
    ),
    "norm_rope_write": Case(
        fused("qwen3", "norm_rope_write"), norm_rope_write, "q k v", "q_weight k_weight positions"
    ),
}  # fmt: skip


def cases() -> Iterator[Any]:
    for name, case in CASES.items():
        for device, function in case.kernels.items():
            if device == "naive" or (DEVICE.type == "cuda" and device != "cuda"):
                continue
            layouts = [(a, layout) for a in case.rows.split() for layout in LAYOUTS]
            layouts += [(a, steps) for a in case.vectors.split()]
            for argument, layout in layouts:
                if argument == case.changed and layout is repeated:
                    continue  # rows that share memory cannot be changed
                label = f"{name}-{function.split('.')[-1]}-{argument}-{layout.__name__}"
                yield pytest.param(case, function, argument, layout, id=label)


@pytest.mark.parametrize(("case", "function", "argument", "layout"), list(cases()))
def test_layouts(
    case: Case, function: str, argument: str, layout: Callable[[Tensor], Tensor]
) -> None:
    torch.manual_seed(1)
    arguments = case.arguments()
    view = layout(arguments[argument])
    assert not view.is_contiguous()

    def call(name: str, value: Tensor) -> Any:
        copies = {k: v.clone() if isinstance(v, Tensor) else v for k, v in arguments.items()}
        copies[argument] = value
        called: Callable[..., Any] = resolve(name)
        return called(**copies), copies.get(case.changed)

    wanted = call(case.kernels["naive"], view.clone(memory_format=torch.contiguous_format))
    try:
        result = call(function, view)
    except (InvalidTensor, Unsupported) as refusal:
        assert "stride" in str(refusal)
    else:
        torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-4, equal_nan=True)
