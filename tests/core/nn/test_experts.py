"""Experts, their stacks and their router: against a loop over rows, and what they refuse."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ostro.core.errors import CheckpointError
from ostro.core.load.names import Names
from ostro.core.load.weights import arrange
from ostro.core.nn import Experts
from ostro.core.nn.experts import ExpertLinear, Router
from ostro.core.nn.linear import WeightSlot
from ostro.core.nn.storage import Storage
from ostro.core.ops import Target
from ostro.core.ops.moe_route import RoutingRule
from ostro.core.step import ROWS, Step
from ostro.quant.dense.storage import Dense

CPU = Target(device=torch.device("cpu"), dtype=torch.float32)
EXPERTS, D, HIDDEN = 5, 12, 20
SIGMOID = RoutingRule(2, sigmoid=True)


class Blocks(Storage):
    """A weight of a format with one verb, which is neither fused nor stacked with dense ones."""

    format = "blocks"

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.shape, self.dtype, self.device = tuple(weight.shape), weight.dtype, weight.device

    def dequantize(self, start: int = 0, stop: int | None = None) -> Tensor:
        return self.weight.flatten(0, -2)[start:stop]

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes

    def save(self) -> dict[str, Tensor]:
        return {"weight": self.weight}

    @classmethod
    def stack(cls, storages: Any) -> Blocks | None:
        alike = all(isinstance(storage, cls) for storage in storages)
        return cls(torch.stack([storage.weight for storage in storages])) if alike else None


def fill(stack: ExpertLinear, kinds: dict[str, type] | None = None) -> dict[str, Tensor]:
    """Fill a stack with noise; gives the weights [experts, n, k] and biases of its parts."""
    made: dict[str, Tensor] = {}
    for slot in stack.slots("mlp.experts.stack"):
        value = torch.randn(slot.shape)
        if slot.kind == "tensor":
            getattr(slot.module, slot.part).data.copy_(value)
            made[f"{slot.part}.bias"] = value
            continue
        made.setdefault(slot.part, torch.zeros(stack.experts, *slot.shape))[slot.expert] = value
        stack.fill(slot, (kinds or {}).get(slot.part, Dense)(value))
    stack.finalize(CPU)
    return made


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 7, 200])
def test_experts_equal_a_loop(rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    experts = Experts(EXPERTS, D, HIDDEN, "silu", bias=bias)
    up, down = fill(experts.gate_up), fill(experts.down)
    x = torch.randn(rows, D)
    chosen = torch.rand(rows, EXPERTS).argsort(-1)[:, :3]
    weights = torch.rand(rows, 3)
    expected = torch.zeros(rows, D)
    for row in range(rows):
        for e, weight in zip(chosen[row].tolist(), weights[row], strict=True):
            gate, raised, out = (
                {**up, **down}.get(f"{part}.bias", torch.zeros(EXPERTS, 1))[e]
                for part in ("gate_proj", "up_proj", "down_proj")
            )
            gate = gate + up["gate_proj"][e] @ x[row]
            raised = raised + up["up_proj"][e] @ x[row]
            expected[row] += weight * (out + down["down_proj"][e] @ (F.silu(gate) * raised))
    torch.testing.assert_close(experts(x, chosen, weights, ROWS), expected, rtol=1e-4, atol=1e-4)


def test_parts_of_two_formats_stay_apart() -> None:
    stack = ExpertLinear(EXPERTS, D, {"gate_proj": 3, "up_proj": 4})
    made = fill(stack, {"up_proj": Blocks})
    assert [storage.format for storage in stack.storages] == ["dense", "blocks"]
    x, expert_of_row = torch.randn(4, D), torch.tensor([0, 2, 2, 4])
    both = torch.cat([made["gate_proj"], made["up_proj"]], 1)[expert_of_row]
    y = stack(x, expert_of_row, ROWS)
    torch.testing.assert_close(y, torch.einsum("tnk,tk->tn", both, x))
    assert stack.nbytes == EXPERTS * 7 * D * 4


def test_parts_of_one_format_are_one_storage() -> None:
    stack = ExpertLinear(EXPERTS, D, {"gate_proj": 3, "up_proj": 4})
    fill(stack)
    assert [storage.shape for storage in stack.storages] == [(EXPERTS, 7, D)]


@pytest.mark.parametrize("part", ["gate_proj", "up_proj"])
def test_experts_of_two_formats_are_refused(part: str) -> None:
    stack = ExpertLinear(2, D, {"gate_proj": 3, "up_proj": 3})
    for slot in stack.slots("experts.stack"):
        other = slot.part == part and slot.expert == 1
        stack.fill(slot, (Blocks if other else Dense)(torch.randn(slot.shape)))
    with pytest.raises(CheckpointError, match=r"experts of a layer are stored as .*blocks"):
        stack.finalize(CPU)


def test_stacks_of_a_format_that_has_none_are_refused() -> None:
    class Single(Blocks):
        @classmethod
        def stack(cls, storages: Any) -> None:
            return None

    stack = ExpertLinear(2, D, {"down_proj": 3})
    for slot in stack.slots("experts.down"):
        stack.fill(slot, Single(torch.randn(slot.shape)))
    with pytest.raises(CheckpointError, match="stored as blocks, which cannot be stacked"):
        stack.finalize(CPU)


def test_slots_name_every_expert() -> None:
    slots: list[WeightSlot] = list(
        ExpertLinear(2, D, {"down_proj": 3}, bias=True).slots("mlp.experts.down")
    )
    names = [(slot.name, slot.kind, slot.shape) for slot in slots]
    assert names == [
        ("mlp.experts.0.down_proj", "storage", (3, D)),
        ("mlp.experts.1.down_proj", "storage", (3, D)),
        ("mlp.experts.down_proj.bias", "tensor", (2, 3)),
    ]


class Mixed:
    """A delta that says which mixture each of its rows has."""

    def grouped(self, x: Tensor, y: Tensor, expert_of_row: Tensor, step: Step) -> Tensor:
        assert step.mixture is not None
        return y * 0 + step.mixture[:, None]


def test_a_delta_sees_the_mixture_of_every_copied_row() -> None:
    experts = Experts(EXPERTS, D, HIDDEN, "silu")
    fill(experts.gate_up)
    fill(experts.down)
    experts.down.deltas.append(Mixed())  # type: ignore[arg-type]
    mixture = torch.tensor([3, 1, 2], dtype=torch.int32)
    step = Step(torch.zeros(3, dtype=torch.int64), torch.zeros(1, 3), mixture=mixture)
    chosen = torch.tensor([[4, 0], [1, 4], [2, 0]])
    y = experts(torch.randn(3, D), chosen, torch.full((3, 2), 0.5), step)
    torch.testing.assert_close(y, mixture.float()[:, None].expand(3, D))


@pytest.mark.parametrize("renormalise", [False, True])
def test_router(renormalise: bool) -> None:
    torch.manual_seed(0)
    router = Router(D, EXPERTS, RoutingRule(3, renormalise))
    weight, x = torch.randn(EXPERTS, D), torch.randn(9, D)
    router.fill(next(router.slots("gate")), Dense(weight))
    router.finalize(CPU)
    chosen, weights = router.choose(x, ROWS)
    shares = (x @ weight.T).softmax(-1)
    best = shares.sort(-1, descending=True)
    assert torch.equal(chosen, best.indices[:, :3])
    expected = best.values[:, :3]
    if renormalise:
        expected = expected / expected.sum(-1, keepdim=True)
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights, expected)


def test_correction_bias_of_a_router() -> None:
    """It is a tensor of its own in checkpoints, not one of the weight's, and changes the choice."""
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"gate": Router(D, EXPERTS, SIGMOID, correction_bias=True)})
    names = ["gate.weight", "gate.e_score_correction_bias"]
    found = arrange(model, SimpleNamespace(tensors=names), Names(), "hub")  # type: ignore[arg-type]
    assert [*found[0]["gate"]] == ["weight"] and [*found[1]] == names[1:] and not found[2]
    router, x = model["gate"], torch.randn(9, D)
    weight, bias = torch.randn(EXPERTS, D), torch.tensor([0.0, 9.0, 0.0, 0.0, 5.0])
    for slot, value in zip(router.slots("gate"), (Dense(weight), bias), strict=True):
        router.fill(slot, value)
    router.finalize(CPU)
    chosen, weights = router.choose(x, ROWS)
    assert chosen.tolist() == [[1, 4]] * 9
    torch.testing.assert_close(weights, (x @ weight.T).sigmoid()[:, [1, 4]])
