"""Attention: the naive version against other formulations, Triton against the naive version."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from tiny.candidates import results_of_candidates
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ostro.core.errors import Unsupported
from ostro.core.ops import Op, Target
from ostro.core.ops.attention import KERNELS, AttentionMetadata, naive, triton
from ostro.core.ops.kv_write.scaled import Scaled, narrow
from ostro.plugins.conformance.kernels import DEVICE, poison

NAN = float("nan")


@dataclass
class Case:
    """A batch over a paged cache, and each sequence's keys and values before they were paged."""

    q: Tensor
    k_cache: Tensor | Scaled
    v_cache: Tensor | Scaled
    batch: AttentionMetadata
    scale: float
    keys: list[Tensor]
    values: list[Tensor]

    def run(self, kernel: Any, **features: Any) -> Tensor:
        return kernel(self.q, self.k_cache, self.v_cache, self.batch, self.scale, **features)

    def queries(self, s: int) -> Tensor:
        starts = self.batch.starts.tolist()
        return self.q[starts[s] : starts[s + 1]]


def ragged(
    queries: Sequence[int],
    lengths: Sequence[int],
    *,
    heads: int = 4,
    kv: int = 2,
    d: int = 32,
    dv: int = 0,
    page: int = 16,
    window: int = 0,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    seed: int = 0,
) -> Case:
    """Sequences of `lengths` whose last `queries` tokens are this step's rows.

    Blocks are handed out in random order. Every place of the cache that the step may not read holds
    NaN: blocks of nobody, places past a length, and, where window > 0, tokens out of all windows.
    """
    torch.manual_seed(seed)
    dv, cache_dtype = dv or d, cache_dtype or dtype
    width = max(-(-length // page) for length in lengths) + 1
    table = (torch.randperm(len(lengths) * width) + 1).view(-1, width)
    k_cache = torch.full((table.numel() + 1, kv, page, d), NAN)
    v_cache = torch.full((table.numel() + 1, kv, page, dv), NAN)
    keys, values = [], []
    for s, (n, length) in enumerate(zip(queries, lengths, strict=True)):
        keys.append((2 * torch.randn(length, kv, d)).to(cache_dtype))
        values.append(torch.randn(length, kv, dv).to(cache_dtype))
        first = max(0, length - n + 1 - window) if window else 0
        table[s, : first // page] = 0
        position = torch.arange(first, length)
        block, place = table[s, position // page], position % page
        k_cache[block, :, place] = keys[s][first:].float()
        v_cache[block, :, place] = values[s][first:].float()
    batch = AttentionMetadata(
        table=table.int().to(DEVICE),
        starts=torch.tensor([0, *queries]).cumsum(0).int().to(DEVICE),
        lengths=torch.tensor(lengths).int().to(DEVICE),
        slots=torch.full((sum(queries),), -1, dtype=torch.int64, device=DEVICE),
        max_queries=max(queries),
        max_length=max(lengths),
    )
    # As a model gives it: the front of a wider projection, so that rows are not adjacent.
    q = torch.randn(sum(queries), heads + 2 * kv, d).to(dtype).to(DEVICE)[:, :heads]
    k_cache, v_cache = k_cache.to(cache_dtype).to(DEVICE), v_cache.to(cache_dtype).to(DEVICE)
    keys, values = [k.to(DEVICE) for k in keys], [v.to(DEVICE) for v in values]
    return Case(q, k_cache, v_cache, batch, d**-0.5, keys, values)


def by_definition(
    case: Case,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    alibi: Tensor | None = None,
) -> Tensor:
    """The package's sentence about scores, read literally: one row, one head, one key at a time."""
    rows = []
    for s, keys in enumerate(case.keys):
        queries = case.queries(s)
        for r, heads in enumerate(queries):
            position = len(keys) - len(queries) + r
            row = []
            for head, query in enumerate(heads):
                group = head // (len(heads) // keys.shape[1]) if len(keys) else 0
                total = math.exp(sinks[head]) if sinks is not None else 0.0
                result = torch.zeros(case.v_cache.shape[-1], dtype=torch.float64)
                for at in range(max(0, position - window + 1) if window else 0, position + 1):
                    score = float(query.double() @ keys[at, group].double()) * case.scale
                    if softcap:
                        score = softcap * math.tanh(score / softcap)
                    if alibi is not None:
                        score += float(alibi[head]) * (at - position)
                    total += math.exp(score)
                    result += math.exp(score) * case.values[s][at, group].double().cpu()
                row.append(result / total if len(keys) else result)
            rows.append(torch.stack(row))
    return torch.stack(rows).float().to(DEVICE)


def per_head(heads: int = 4) -> Tensor:
    return torch.linspace(0.1, 1.5, heads, device=DEVICE)


FEATURES = {
    "plain": {},
    "window": {"window": 7},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": per_head()},
    "alibi": {"alibi": per_head()},
    "all": {"window": 9, "softcap": 3.0, "sinks": per_head(), "alibi": per_head() / 4},
}
features = pytest.mark.parametrize("given", FEATURES.values(), ids=FEATURES)
OTHER_PAGES = [(16, 0), (16, 5), (48, 0), (48, 40), (256, 5), (256, 40)]
BUCKET = ([40, 1, 90, 0, 0], [70, 20, 0, 0, 0])
"""Two sequences in a bucket of five: the third has the idle rows, the others have none."""

MIXED = ([3, 1, 5, 1, 2], [3, 20, 12, 0, 33])
DECODE = ([1, 1, 1, 1], [1, 70, 0, 33])


@features
@pytest.mark.parametrize("shape", [MIXED, DECODE], ids=["mixed", "decode"])
def test_naive_is_the_definition(shape: Any, given: dict[str, Any]) -> None:
    case = ragged(*shape, dv=8, window=given.get("window", 0))
    torch.testing.assert_close(case.run(naive.attention, **given), by_definition(case, **given))


def test_every_feature_changes_the_result() -> None:
    case = ragged(*MIXED)
    plain = case.run(naive.attention)
    for name, given in FEATURES.items():
        changed = (case.run(naive.attention, **given) - plain).abs().max() > 1e-2
        assert changed == (name != "plain"), name


def test_naive_equals_sdpa() -> None:
    case = ragged([40, 6], [40, 50], heads=8, kv=2)
    got = case.run(naive.attention)
    for s, rows in enumerate(got.split([40, 6])):
        length, n = len(case.keys[s]), len(rows)
        q, k, v = (x.transpose(0, 1) for x in (case.queries(s), case.keys[s], case.values[s]))
        mask = torch.ones(n, length, dtype=torch.bool, device=DEVICE).tril(length - n)
        want = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        torch.testing.assert_close(rows, want.transpose(0, 1))


def eager(case: Case, forward: Any, **kwargs: Any) -> Tensor:
    """One sequence through an attention of transformers, which masks by addition."""
    k, v = case.keys[0].transpose(0, 1)[None], case.values[0].transpose(0, 1)[None]
    n, length = len(case.q), k.shape[2]
    mask = torch.full((1, 1, n, length), -torch.inf, device=DEVICE).triu(length - n + 1)
    module = SimpleNamespace(
        num_key_value_groups=case.q.shape[1] // k.shape[1],
        training=False,
        sinks=kwargs.pop("sinks", None),
        head_dim=case.q.shape[2],
    )
    q = case.q.transpose(0, 1)[None]
    out, _ = forward(module, q, k, v, mask, scaling=case.scale, dropout=0.0, **kwargs)
    return out[0]


def test_naive_equals_gemma2() -> None:
    from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

    case = ragged([9], [21])
    want = eager(case, eager_attention_forward, softcap=2.0)
    torch.testing.assert_close(case.run(naive.attention, softcap=2.0), want)


def test_naive_equals_gpt_oss() -> None:
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    case = ragged([9], [21])
    want = eager(case, eager_attention_forward, sinks=per_head())
    torch.testing.assert_close(case.run(naive.attention, sinks=per_head()), want)


def check(case: Case, *, deterministic: bool = False, **given: Any) -> None:
    """The kernel against the naive version, in memory that is NaN where nothing was written."""
    with poison():
        got = case.run(triton.attention, deterministic=deterministic, **given)
    want = case.run(naive.attention, **given)
    tolerance = 2e-5 if case.q.dtype == torch.float32 else 4e-3
    torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


@pytest.mark.sample(3)
@features
@pytest.mark.parametrize("shape", [MIXED, DECODE], ids=["mixed", "decode"])
def test_triton_equals_naive(shape: Any, given: dict[str, Any]) -> None:
    check(ragged(*shape, window=given.get("window", 0)), **given)


@pytest.mark.slow
@pytest.mark.parametrize("given", [{}, FEATURES["all"]], ids=["plain", "all"])
@pytest.mark.parametrize("shape", [MIXED, DECODE], ids=["mixed", "decode"])
def test_fixed_equals_naive(shape: Any, given: dict[str, Any]) -> None:
    check(ragged(*shape, window=given.get("window", 0)), deterministic=True, **given)


@pytest.mark.sample(1)
@pytest.mark.parametrize("shape", [MIXED, DECODE], ids=["mixed", "decode"])
@pytest.mark.parametrize(
    ("heads", "kv", "d", "dv"),
    [
        (1, 1, 64, 64),
        (7, 1, 80, 80),
        (12, 2, 96, 64),
        (3, 3, 112, 112),
        (40, 2, 192, 128),
        (4, 4, 256, 256),
        (20, 1, 40, 24),
    ],
)
def test_triton_shapes(shape: Any, heads: int, kv: int, d: int, dv: int) -> None:
    check(ragged(*shape, heads=heads, kv=kv, d=d, dv=dv, dtype=torch.float16))


@pytest.mark.parametrize("queries", [1, 3])
def test_triton_latent(queries: int) -> None:
    """Latent attention: values are the front of the keys, in the same memory."""
    case = ragged([queries] * 2, [30, 7], heads=32, kv=1, d=576, dtype=torch.float16)
    case.v_cache = case.k_cache[..., :512]
    check(case)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("page", "window"),
    [
        (16, 40),
        (48, 5),
        (256, 0),
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in OTHER_PAGES),
    ],
)
def test_triton_pages(page: int, window: int) -> None:
    check(ragged(*MIXED, page=page, window=window), window=window)
    check(ragged(*DECODE, page=page, window=window), window=window)


@pytest.mark.sample(1)
@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.float8_e4m3fn])
def test_triton_casts_the_cache(stored: torch.dtype) -> None:
    check(ragged(*MIXED, dtype=torch.float16, cache_dtype=stored))


@pytest.mark.sample(1)
@pytest.mark.parametrize("lengths", [[300], [1, 513], [128] * 5])
def test_triton_splits_decode(lengths: list[int]) -> None:
    case = ragged([1] * len(lengths), lengths, kv=1)
    check(case)
    check(case, sinks=per_head())


@pytest.mark.slow
def test_triton_takes_bounds_beyond_the_batch() -> None:
    """A captured launch has the bounds of its bucket and a table of that width."""
    for queries, lengths in (MIXED, DECODE):
        case = ragged(queries, lengths)
        case.batch.max_length = 200
        check(case)


@pytest.mark.parametrize("name", ["plain", "all"])
@pytest.mark.parametrize("longest", [70, 200])
def test_triton_bucket_of_prompts(name: str, longest: int) -> None:
    """`longest` is the context, which bounds the lengths."""
    case = ragged(*BUCKET, window=FEATURES[name].get("window", 0))
    case.batch.max_length = longest
    check(case, **FEATURES[name])


def test_triton_prompt_of_many_tiles() -> None:
    check(ragged([90, 1, 50], [90, 70, 80], heads=4, kv=1, dtype=torch.float16))


@pytest.mark.parametrize(
    ("shape", "count"),
    [(DECODE, 3), (([9, 1, 20], [12, 3, 33]), 6)],
    ids=["decode", "prompts"],
)
@pytest.mark.parametrize("given", [{}, FEATURES["all"]], ids=["plain", "all"])
def test_all_candidates_compute_the_same(given: dict[str, Any], shape: Any, count: int) -> None:
    case = ragged(*shape, window=given.get("window", 0), dtype=torch.float16)
    truth = case.run(naive.attention, **given)
    results = list(results_of_candidates(lambda: case.run(triton.attention, **given)))
    assert len(results) == count
    for result in results:
        torch.testing.assert_close(result, truth, atol=4e-3, rtol=4e-3)


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments and workspace so small that short sequences need several of each."""
    monkeypatch.setattr(triton, "SEGMENT", 32)
    monkeypatch.setattr(triton, "WORKSPACE", 1 << 17)


@pytest.fixture
def products_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of a product, as on a GPU, has the same bits wherever in a tile it stands.

    Interpreted, products are BLAS's, whose order of sums depends on that on some CPUs.
    """
    multiply = numpy.matmul

    def exact(a: Any, b: Any, dtype: Any = None) -> Any:
        wide = multiply(a.astype(numpy.float64), b.astype(numpy.float64))
        return wide.astype(dtype or a.dtype)

    monkeypatch.setattr(numpy, "matmul", exact)


@pytest.mark.slow
@pytest.mark.usefixtures("small_segments", "products_by_row")
@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        (torch.float32, None),
        *(
            pytest.param(dtype, stored, marks=pytest.mark.slow)
            for dtype, stored in product(
                (torch.float32, torch.float16), (None, torch.int8, torch.float8_e4m3fn)
            )
            if (dtype, stored) != (torch.float32, None)
        ),
    ],
    ids=str,
)
def test_fixed_is_the_same_alone_in_a_batch_and_in_chunks(
    dtype: torch.dtype, stored: torch.dtype | None
) -> None:
    given: dict[str, Any] = {"sinks": per_head(2), "window": 50, "deterministic": True}
    case = ragged([20, 75, 1], [20, 75, 30], heads=2, kv=1, dtype=dtype)
    if stored is not None:
        case.k_cache, case.v_cache = (
            Scaled(*narrow(x, stored)) for x in (case.k_cache, case.v_cache)
        )
    want = case.run(triton.attention, **given)[20:95]

    def rows(start: int, end: int) -> Tensor:
        """Rows start..end of the second sequence, in a batch of their own."""
        bounds = torch.tensor([0, end - start, end], dtype=torch.int32, device=DEVICE)
        batch = replace(
            case.batch,
            table=case.batch.table[1:2],
            starts=bounds[:2],
            lengths=bounds[2:],
            max_queries=end - start,
            max_length=end,
        )
        q = case.q[20 + start : 20 + end]
        return triton.attention(q, case.k_cache, case.v_cache, batch, case.scale, **given)

    assert torch.equal(rows(0, 75), want)
    assert torch.equal(torch.cat([rows(0, 37), rows(37, 74), rows(74, 75)]), want)
    assert torch.equal(rows(50, 51), want[50:51])


@pytest.mark.slow
@pytest.mark.usefixtures("small_segments")
def test_fixed_equals_naive_over_many_segments() -> None:
    check(ragged([60, 3], [110, 90], heads=2, kv=1, dtype=torch.float16), deterministic=True)


@pytest.mark.usefixtures("small_segments")
def test_fixed_takes_bounds_beyond_the_batch() -> None:
    case = ragged(*DECODE, heads=2, kv=1)
    case.batch.max_length = 300
    check(case, deterministic=True)


def test_triton_refuses_heads_that_do_not_divide() -> None:
    case = ragged([1], [5], heads=3, kv=2)
    with pytest.raises(Unsupported, match="3 query heads over 2 kv heads"):
        case.run(triton.attention)


def test_the_fixed_kernel_is_chosen_where_rows_must_be_reproducible() -> None:
    for deterministic, name in ((False, "triton"), (True, "triton_deterministic")):
        target = Target(
            device=torch.device("cuda"), dtype=torch.float16, deterministic=deterministic
        )
        assert Op(KERNELS).select(target).kernel.name == name
