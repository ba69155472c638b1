"""varlen_attention: the naive version against its formula, SDPA against the naive version."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from ostro.core.ops.varlen_attention import naive, sdpa
from ostro.plugins.conformance.kernels import poison

BOUNDS = [0, 1, 4, 7, 10, 10, 17, 50]
CASES = [{}, {"causal": True}, {"window": 3}, {"window": 5, "causal": True}, {"window": 100}]


def rows(heads: int, kv: int, d: int, dv: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """q, k, v as views of fused rows."""
    torch.manual_seed(0)
    fused = torch.randn(BOUNDS[-1], heads * d + kv * (d + dv) + 3).to(dtype)[:, 3:]
    q, k, v = fused.split((heads * d, kv * d, kv * dv), 1)
    return [q.unflatten(1, (heads, d)), k.unflatten(1, (kv, d)), v.unflatten(1, (kv, dv))]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("shape", [(4, 4, 16, 16), (6, 2, 24, 8), (5, 1, 7, 9)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sdpa(dtype: torch.dtype, shape: tuple[int, ...], case: dict[str, int]) -> None:
    x = rows(*shape, dtype)
    with poison():
        result = sdpa.varlen_attention(*x, BOUNDS, 0.3, **case)
    expected = naive.varlen_attention(*x, BOUNDS, 0.3, **case)
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(result, expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_mask_of_attention(case: dict[str, int]) -> None:
    """A value counts for a row exactly where the row sees it."""
    q, k, v = rows(1, 1, 4, 1, torch.float32)
    for j in (0, 5, 30):
        v = torch.zeros_like(v)
        v[j] = 1
        out = naive.varlen_attention(q, k, v, BOUNDS, 0.3, **case)[:, 0, 0]
        for i in range(BOUNDS[-1]):
            together = any(a <= i < b and a <= j < b for a, b in pairwise(BOUNDS))
            near = not case.get("window") or abs(i - j) < case["window"]
            sees = together and near and not (case.get("causal") and j > i)
            assert (out[i] > 0) == sees, (i, j)
