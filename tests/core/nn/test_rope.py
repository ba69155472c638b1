"""Rope whose tokens have several positions, against transformers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from ostro.core.nn import Rope
from ostro.core.nn.rope import weave

CPU = torch.device("cpu")
RULE = {"rope_theta": 1e3, "rope_type": "default"}


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(7, heads, 32, generator=generator) for heads in (4, 2))
    return q, k, torch.randint(0, 50, (3, 7), generator=generator)


def made(sections: tuple[int, ...], woven: bool) -> Rope:
    rope = Rope(RULE, 32, 50, sections=sections, woven=woven)
    rope.finalize(50, CPU)
    return rope


@pytest.mark.parametrize("sections", [(6, 5, 5), (4, 6, 6), (16, 0, 0), (10, 3, 3)])
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_sections_match_transformers(family: str, sections: tuple[int, ...]) -> None:
    module: Any = pytest.importorskip(f"transformers.models.{family}.modeling_{family}")
    names = {"qwen2_5_vl": "Qwen2_5_VLRotaryEmbedding", "qwen3_vl": "Qwen3VLTextRotaryEmbedding"}
    rule = {**RULE, "mrope_section": list(sections)}
    config = SimpleNamespace(rope_parameters=rule, head_dim=32, max_position_embeddings=50)
    q, k, positions = inputs()
    cos, sin = getattr(module, names[family])(config)(q, positions[:, None])
    turned = module.apply_rotary_pos_emb(q[None].transpose(1, 2), k[None].transpose(1, 2), cos, sin)
    ours = made(sections, family == "qwen3_vl")(q, k, positions)
    for found, expected in zip(ours, turned, strict=True):
        torch.testing.assert_close(found, expected[0].transpose(0, 1))


def test_equal_positions_turn_as_one_does() -> None:
    q, k, positions = inputs()
    same = positions[:1].expand(3, -1)
    plain = Rope(RULE, 32, 50)
    plain.finalize(50, CPU)
    expected = plain(q, k, positions[:1])
    for woven in (False, True):
        torch.testing.assert_close(made((6, 5, 5), woven)(q, k, same), expected)


def test_woven_angles_serve_what_knows_one_position_per_token() -> None:
    q, k, positions = inputs()
    rope = made((6, 5, 5), True)
    rows, table = rope.angles(positions)
    assert rows.shape == (1, 7) and table.shape == (7, 32)
    plain = Rope(RULE, 32, 50)
    plain.table = table
    torch.testing.assert_close(plain(q, k, rows), rope(q, k, positions))


def test_sections_take_turns_until_they_are_used_up() -> None:
    assert weave((2, 2, 1)) == [0, 1, 2, 0, 1]
    assert weave((5, 2, 1)) == [0, 1, 2, 0, 1, 0, 0, 0]
