"""What a change makes of a module is what its name says."""

from __future__ import annotations

import pytest

from ostro.core.nn import EncoderAttention
from ostro.plugins.conformance.fixes.attention import head_dim, scores


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_heads_of_encoders_that_share_keys_keep_their_width(kv_heads: int) -> None:
    attention = EncoderAttention(64, 4, kv_heads=kv_heads, head_dim=32)
    assert head_dim(attention) == 32
    by_width = "scores times 1 / sqrt(head_dim)"
    assert by_width not in {change.name for change in scores(attention, {})}  # type: ignore[arg-type]
    attention.scale = 1.0
    (change,) = (c for c in scores(attention, {}) if c.name == by_width)  # type: ignore[arg-type]
    change.apply(attention)
    assert attention.scale == 32**-0.5
