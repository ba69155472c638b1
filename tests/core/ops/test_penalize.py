"""penalize: both implementations against a computation over dictionaries."""

import math
from types import ModuleType
from typing import Any

import pytest
import torch

from ostro.core.ops.penalize import Penalties, naive, triton
from ostro.plugins.conformance.kernels import DEVICE

VOCABULARY = 1030
ROWS: list[dict[str, Any]] = [
    dict(prompt=[3, 1029], output=[5, 5, 7], repetition=1.5, presence=0.2, frequency=0.5, bias=[]),
    dict(prompt=[], output=[], repetition=1.0, presence=0.0, frequency=0.0, bias=[(0, 5.0)]),
    dict(
        prompt=[1, 1024],
        output=[1024],
        repetition=0.5,
        presence=-1.0,
        frequency=0.0,
        bias=[(1024, -2.0), (8, -math.inf), (1024, 0.5), (8, 3.0), (1029, 1e-3)],
    ),
]


def expected(logits: list[list[float]], counts: bool, seen: bool) -> list[list[float]]:
    out = []
    for row, values in zip(ROWS, logits, strict=True):
        result = dict(enumerate(values))
        output = row["output"] if counts else []
        for token in {*output, *(row["prompt"] if seen else [])}:
            r = row["repetition"]
            result[token] = result[token] / r if result[token] > 0 else result[token] * r
        for token in set(output):
            result[token] -= row["presence"]
        for token in output:
            result[token] -= row["frequency"]
        for token, amount in row["bias"]:
            result[token] += amount
        out.append(list(result.values()))
    return out


@pytest.mark.parametrize("module", [naive, triton], ids=["naive", "triton"])
@pytest.mark.parametrize("counts", [True, False], ids=["output", "no-output"])
@pytest.mark.parametrize("seen", [True, False], ids=["prompt", "no-prompt"])
def test_penalties(module: ModuleType, counts: bool, seen: bool) -> None:
    torch.manual_seed(0)
    logits = torch.randn(len(ROWS), VOCABULARY, device=DEVICE) * 3
    want = torch.tensor(expected(logits.tolist(), counts, seen), device=DEVICE)
    said = torch.zeros(len(ROWS), VOCABULARY, dtype=torch.int32, device=DEVICE)
    prompt = torch.zeros(len(ROWS), VOCABULARY, dtype=torch.bool, device=DEVICE)
    for i, row in enumerate(ROWS):
        prompt[i, row["prompt"]] = True
        for token in row["output"]:
            said[i, token] += 1
    entries = [(i, token, amount) for i, row in enumerate(ROWS) for token, amount in row["bias"]]
    rows, ids, values = zip(*entries, strict=True)
    params = Penalties(
        counts=said if counts else None,
        seen=prompt if seen else None,
        bias_rows=torch.tensor(rows, device=DEVICE),
        bias_ids=torch.tensor(ids, device=DEVICE),
        bias_values=torch.tensor(values, device=DEVICE),
        **{
            name: torch.tensor([row[name] for row in ROWS], device=DEVICE)
            for name in ("repetition", "presence", "frequency")
        },
    )
    out = module.penalize(logits, params)
    assert out is logits
    torch.testing.assert_close(out, want)


@pytest.mark.parametrize("module", [naive, triton], ids=["naive", "triton"])
def test_logits_without_penalties_are_unchanged(module: ModuleType) -> None:
    logits = torch.randn(2, 9, device=DEVICE)
    none = torch.zeros(0, dtype=torch.int64, device=DEVICE)
    neutral = torch.zeros(2, device=DEVICE)
    params = Penalties(None, None, neutral + 1, neutral, neutral, none, none, none.float())
    assert torch.equal(module.penalize(logits.clone(), params), logits)
