"""Attention layers: a layer that reads the cache of another one; a norm without weight."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from ostro.core.config import TextConfig
from ostro.core.engine.layout import RowSegment, build_metadata
from ostro.core.load.weights import weight_slots
from ostro.core.nn import Attention, RMSNorm, Rope
from ostro.core.nn.linear import Linear
from ostro.core.ops import Op, Target
from ostro.core.step import Step
from ostro.quant.dense.storage import Dense

CPU = torch.device("cpu")
TARGET = Target(device=CPU, dtype=torch.float32)
ROWS, BLOCK = 5, 8
CONFIG = TextConfig(
    vocab_size=8,
    hidden_size=24,
    intermediate_size=8,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=6,
)


def attention(weights: dict[str, Tensor], **options: Any) -> Attention:
    """An attention of layer 0 with these weights; missing ones are drawn and added."""
    rope = Rope({"rope_theta": 100.0}, CONFIG.head_dim, ROWS)
    rope.finalize(ROWS, CPU)
    found = Attention(CONFIG, 0, rope, qk_norm="head", **options)
    for slot in weight_slots(found):
        weight = weights.setdefault(slot.name, torch.randn(slot.shape))
        if slot.kind == "storage":
            slot.module.fill(slot, Dense(weight))  # type: ignore[operator]
        else:
            getattr(slot.module, slot.part).data.copy_(weight)
    for module in found.modules():
        if isinstance(module, Linear):
            module.finalize(TARGET)
        for op in vars(module).values():
            if isinstance(op, Op):
                op.select(TARGET)
    return found


def step_of(pages: torch.Tensor) -> Step:
    """A prompt of ROWS rows in the block of `pages` [2, 1, kv, block, d]."""
    batch = build_metadata([RowSegment(ROWS, ROWS, [0])], [*range(ROWS)], CPU)
    view = SimpleNamespace(k=pages[0], v=pages[1], batch=batch)
    positions = torch.arange(ROWS)[None]
    return Step(torch.zeros(ROWS, dtype=torch.int64), positions, caches=[view])


@pytest.mark.parametrize("window", [0, 2])
def test_shared_attention_reads_what_its_source_has_written(window: int) -> None:
    torch.manual_seed(0)
    weights: dict[str, Tensor] = {}
    own, shared = (attention(weights, window=window, shared=s) for s in (False, True))
    step = step_of(torch.zeros(2, 1, CONFIG.num_key_value_heads, BLOCK, CONFIG.head_dim))
    x = torch.randn(ROWS, CONFIG.hidden_size)
    expected = own(x, step)
    written = step.caches[0].k.clone()
    assert written.abs().sum() and torch.equal(shared(x, step), expected)
    assert torch.equal(step.caches[0].k, written), "it writes nothing"
    step.caches[0].v.zero_()
    assert not shared(x, step).any()


def test_shared_attention_has_no_weights_of_keys_and_no_cache() -> None:
    shared = attention({}, shared=True)
    assert [slot.name for slot in weight_slots(shared)] == ["q_proj", "o_proj", "q_norm.weight"]
    assert shared.spec is None


def test_a_norm_without_weight_has_no_slot_and_multiplies_by_one() -> None:
    norm = RMSNorm(4, 0.0, weight=False)
    assert not list(weight_slots(norm)) and not norm.state_dict()
    for op in vars(norm).values():
        if isinstance(op, Op):
            op.select(TARGET)
    y, _ = norm(torch.tensor([[2.0, -2.0, 2.0, 2.0]]))
    assert torch.allclose(y, torch.tensor([[1.0, -1.0, 1.0, 1.0]]))
