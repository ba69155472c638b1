"""Sequences whose rows see what is behind them: images in a prompt, and what encoders made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ostro.core.ops.attention import (
    AttentionMetadata,
    HostMetadata,
    cpu,
    naive,
    native,
    rowwise,
    triton,
)
from ostro.plugins.conformance.kernels import DEVICE, poison

KERNELS = {
    "naive": naive.attention,
    "rowwise": rowwise.attention,
    "cpu": cpu.attention,
    "native": native.attention,
    "triton": triton.attention,
    "triton_deterministic": triton.attention_deterministic,
}
KV, HEADS, D, PAGE = 2, 4, 32, 16
# queries, lengths, full: a prompt cut where an image begins and ends; memories longer and shorter
# than the rows that look at them, one that is not there, and one row alone.
BATCHES = {
    "image": ([5, 20, 7], [25, 45, 52], [0, 1, 0]),
    "memory": ([30, 3, 4, 1], [17, 40, 0, 33], [1, 1, 1, 1]),
    "decode": ([1, 1, 1], [17, 0, 50], [1, 1, 1]),
}


def batch(name: str, host: bool) -> tuple[Tensor, Tensor, Tensor, AttentionMetadata]:
    queries, lengths, full = BATCHES[name]
    torch.manual_seed(3)
    width = max(-(-n // PAGE) for n in lengths) + 1
    table = torch.randperm(len(lengths) * width).view(-1, width)
    k, v = (torch.full((table.numel(), KV, PAGE, D), float("nan")) for _ in range(2))
    for s, length in enumerate(lengths):
        at = torch.arange(length)
        for cache in (k, v):
            cache[table[s, at // PAGE], :, at % PAGE] = torch.randn(length, KV, D)
    starts = torch.tensor([0, *queries]).cumsum(0)
    lists = HostMetadata(starts.tolist(), lengths, table.tolist(), [bool(x) for x in full])
    ragged = AttentionMetadata(
        table=table.int().to(DEVICE),
        starts=starts.int().to(DEVICE),
        lengths=torch.tensor(lengths).int().to(DEVICE),
        slots=torch.full((sum(queries),), -1, dtype=torch.int64, device=DEVICE),
        max_queries=max(queries),
        max_length=max(lengths),
        full=torch.tensor(full).int().to(DEVICE),
        host=lists if host else None,
    )
    q = torch.randn(sum(queries), HEADS, D)
    return q.to(DEVICE), k.to(DEVICE), v.to(DEVICE), ragged


def by_definition(name: str, window: int) -> Tensor:
    """A softmax over the keys that each row sees, one row and one head at a time."""
    q, k, v, ragged = batch(name, host=True)
    queries, lengths, full = BATCHES[name]
    rows = []
    for s, (n, length) in enumerate(zip(queries, lengths, strict=True)):
        at = torch.arange(length)
        blocks = ragged.table[s].cpu().long()[at // PAGE]
        keys, values = (x.cpu()[blocks, :, at % PAGE] for x in (k, v))
        for r in range(n):
            row = q[len(rows)].cpu()
            position = length - n + r
            seen = (at <= position) | bool(full[s])
            if window:
                seen &= at > position - window
            heads = []
            for head in range(HEADS):
                group = head // (HEADS // KV)
                weights = (keys[seen, group] @ row[head] * D**-0.5).softmax(0)
                heads.append(weights @ values[seen, group])
            rows.append(torch.stack(heads))
    return torch.stack(rows)


@pytest.mark.sample(2)
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("host", [True, False], ids=["host lists", "device alone"])
@pytest.mark.parametrize(
    ("name", "window"), [("image", 0), ("image", 24), ("memory", 0), ("decode", 0)]
)
def test_every_kernel_sees_what_is_behind(
    name: str, window: int, host: bool, kernel: Callable[..., Any]
) -> None:
    if host and kernel in (triton.attention, triton.attention_deterministic):
        pytest.skip("Triton kernels do not read lists of the host")
    with poison():
        got = kernel(*batch(name, host), D**-0.5, window=window)
    torch.testing.assert_close(got.cpu(), by_definition(name, window), rtol=1e-4, atol=1e-5)


def test_bidirectional_spans_change_only_their_rows() -> None:
    q, k, v, ragged = batch("image", host=True)
    full = naive.attention(q, k, v, ragged, D**-0.5)
    ragged.full = None
    causal = naive.attention(q, k, v, ragged, D**-0.5)
    assert torch.equal(full[:5], causal[:5]) and torch.equal(full[25:], causal[25:])
    assert not torch.isclose(full[5:24], causal[5:24]).all(-1).any()
