"""Every operation at shapes of published models, against its naive version in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from gpu.batches import PAGE, Heads, paged, randn, states
from gpu.comparison import (
    DTYPES,
    ON_GPU,
    assert_near,
    double,
    pick,
    reference,
    run,
)
from torch import Tensor

from ostro.core.ops import (
    act_mul,
    attention,
    causal_conv,
    delta_rule,
    grouped_matmul,
    kv_write,
    latent_attention,
    layer_norm,
    lora,
    moe_route,
    penalize,
    rms_norm,
    rope,
    sample,
    scan,
    varlen_attention,
)
from ostro.core.ops.kv_write.scaled import SCALED_LIMITS as STORED
from ostro.core.ops.kv_write.scaled import Scaled, narrow
from ostro.core.ops.moe_route import RoutingRule
from ostro.core.ops.penalize import Penalties
from ostro.core.ops.rope.scaling import rope_table
from ostro.core.ops.sample import Draw
from ostro.core.records import resolve
from ostro.plugins.conformance.kernels import DEVICE

ALL_DTYPES = [*DTYPES, torch.float32]
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
all_dtypes = pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)


def kernel(op: Any, function: str, module: str = "triton") -> Callable[..., Any]:
    found: Callable[..., Any] = resolve(f"{op.__name__}.{module}:{function}")
    return found


def naive(op: Any, function: str) -> Callable[..., Any]:
    return kernel(op, function, "naive")


MODELS = {
    "llama-8b": (Heads(32, 8, 128, 128), {}),
    "qwen3-0.6b": (Heads(16, 8, 128, 128), {}),
    "qwen2-7b": (Heads(28, 4, 128, 128), {}),
    "qwen3-14b": (Heads(40, 8, 128, 128), {}),
    "30b-a3b": (Heads(32, 4, 128, 128), {}),
    "gemma3": (Heads(8, 4, 256, 256), {"window": 512}),
    "gemma2": (Heads(8, 4, 256, 256), {"window": 700, "softcap": 50.0}),
    "gpt-oss": (Heads(64, 8, 64, 64), {"window": 128, "sinks": True}),
    "bloom": (Heads(16, 16, 64, 64), {"alibi": True}),
    "phi-2": (Heads(32, 32, 80, 80), {}),
}
BATCHES = {
    "decode": pick(([1] * 33, [1, 17, 0, 4096, *range(100, 3000, 100)]), ([1] * 4, [1, 70, 0, 33])),
    "mixed": pick(
        ([300, 1, 64, 1, 17, 0], [300, 2100, 1500, 7, 17, 0]), ([20, 1, 5], [20, 40, 33])
    ),
    "one": pick(([1], [32768]), ([1], [90])),
}
TOO_MANY = {("gemma2", "one"), ("bloom", "one"), ("phi-2", "one"), ("qwen3-14b", "one")}


def tiny(heads: Heads) -> Heads:
    return Heads(2 * min(heads.q // heads.kv, 3), 2, heads.d // 4, heads.dv // 4)


def features(heads: Heads, given: dict[str, Any]) -> dict[str, Any]:
    """Arguments of attention, with values for the heads."""
    found = dict(given)
    if "sinks" in found:
        found["sinks"] = randn(heads.q)
    if "alibi" in found:
        found["alibi"] = torch.rand(heads.q, device=DEVICE) / 4
    return found


@dtypes
@pytest.mark.parametrize(
    ("model", "batch"),
    [(m, b) for m in MODELS for b in BATCHES if (m, b) not in TOO_MANY],
)
def test_attention(model: str, batch: str, dtype: torch.dtype) -> None:
    heads, given = MODELS[model]
    heads = pick(heads, tiny(heads))
    case, given = paged(*BATCHES[batch], heads, dtype), features(heads, given)
    truth = reference(naive(attention, "attention"), *case, **given)
    assert_near(run(kernel(attention, "attention"), *case, **given), truth)


@dtypes
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("model", ["llama-8b", "gemma2", "gpt-oss"])
def test_deterministic_attention(model: str, batch: str, dtype: torch.dtype) -> None:
    heads, given = MODELS[model]
    heads = pick(heads, tiny(heads))
    case, given = paged(*BATCHES[batch], heads, dtype), features(heads, given)
    truth = reference(naive(attention, "attention"), *case, **given)
    found = run(kernel(attention, "attention_deterministic"), *case, **given)
    assert_near(found, truth)
    assert torch.equal(run(kernel(attention, "attention_deterministic"), *case, **given), found)


@pytest.mark.parametrize("batch", ["decode", "mixed"])
def test_attention_in_float32(batch: str) -> None:
    heads = pick(Heads(32, 8, 128, 128), Heads(4, 2, 32, 32))
    case = paged(*BATCHES[batch], heads, torch.float32)
    truth = reference(naive(attention, "attention"), *case)
    assert_near(run(kernel(attention, "attention"), *case), truth)


@dtypes
@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("model", ["llama-8b", "gemma3"])
def test_attention_to_quantized_pages(
    model: str, batch: str, stored: torch.dtype, dtype: torch.dtype
) -> None:
    heads, given = MODELS[model]
    heads = pick(heads, tiny(heads))
    case = paged(*BATCHES[batch], heads, dtype)
    case = case._replace(k=Scaled(*narrow(case.k, stored)), v=Scaled(*narrow(case.v, stored)))
    truth = reference(naive(attention, "attention"), *case, **given)
    assert_near(run(kernel(attention, "attention"), *case, **given), truth)


@dtypes
def test_attention_to_a_long_context(dtype: torch.dtype) -> None:
    case = paged(
        *pick(([1, 1], [131072, 50]), ([1, 1], [100, 50])),
        pick(Heads(8, 2, 128, 128), Heads(2, 1, 32, 32)),
        dtype,
    )
    truth = reference(naive(attention, "attention"), *case)
    assert_near(run(kernel(attention, "attention"), *case), truth)


def test_attention_to_a_cache_of_more_than_2_to_the_31_elements() -> None:
    heads = pick(Heads(8, 2, 128, 128), Heads(2, 1, 32, 32))
    first = (1 << 31) // (heads.kv * PAGE * heads.d) + 5 if ON_GPU else 3
    case = paged([1, 1], [100, 50], heads, DTYPES[0], first_block=first)
    truth = reference(naive(attention, "attention"), *case)
    assert_near(run(kernel(attention, "attention"), *case), truth)


@dtypes
@pytest.mark.parametrize("batch", ["decode", "mixed", "one"])
@pytest.mark.parametrize("heads", [16, 128])
def test_latent_attention(heads: int, batch: str, dtype: torch.dtype) -> None:
    """V2-Lite has 16 heads, V3 has 128."""
    shape = pick(Heads(heads, 1, 576, 512), Heads(4, 1, 80, 64))
    case = paged(*BATCHES[batch], shape, dtype)
    truth = reference(naive(attention, "attention"), *case)
    assert_near(run(kernel(latent_attention, "latent_attention"), *case), truth)


@all_dtypes
@pytest.mark.parametrize("rows", [1, 700])
def test_kv_write(rows: int, dtype: torch.dtype) -> None:
    fused = randn(pick(rows, 9), 48, 128, dtype=dtype)
    slots = torch.randperm(64 * PAGE, device=DEVICE)[: len(fused)]
    slots[len(slots) // 2] = -1 if len(slots) > 1 else slots[0]
    found, truth = (
        [torch.ones(64, 8, PAGE, 128, dtype=dtype, device=DEVICE) for _ in range(2)]
        for _ in range(2)
    )
    kernel(kv_write, "kv_write")(fused[:, 32:40], fused[:, 40:], *found, slots)
    naive(kv_write, "kv_write")(fused[:, 32:40], fused[:, 40:], *truth, slots)
    assert torch.equal(found[0], truth[0]) and torch.equal(found[1], truth[1])


@dtypes
@pytest.mark.parametrize("stored", STORED, ids=str)
def test_kv_write_into_quantized_pages(stored: torch.dtype, dtype: torch.dtype) -> None:
    fused = randn(pick(700, 9), 48, 128, dtype=dtype)
    slots = torch.randperm(64 * PAGE, device=DEVICE)[: len(fused)]
    found, truth = (
        [Scaled(*narrow(torch.ones(64, 8, PAGE, 128, device=DEVICE), stored)) for _ in range(2)]
        for _ in range(2)
    )
    kernel(kv_write, "kv_write")(fused[:, 32:40], fused[:, 40:], *found, slots)
    # On the CPU: torch divides by a number on CUDA by multiplying with its inverse.
    pages = [Scaled(cache.elements.cpu(), cache.scales.cpu()) for cache in truth]
    rows = fused.cpu()
    naive(kv_write, "kv_write")(rows[:, 32:40], rows[:, 40:], *pages, slots.cpu())
    for mine, wanted in zip(found, pages, strict=True):
        assert torch.equal(mine.scales.cpu(), wanted.scales)
        assert torch.equal(mine.bits.cpu(), wanted.bits)


@all_dtypes
@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "pairs"])
@pytest.mark.parametrize(("rows", "d", "r"), [(1, 128, 128), (700, 128, 128), (33, 256, 64)])
def test_rope(rows: int, d: int, r: int, interleaved: bool, dtype: torch.dtype) -> None:
    fused = randn(pick(rows, 5), 48, d, dtype=dtype)
    positions = torch.randint(0, 4000, (1, len(fused)), device=DEVICE)
    angles = rope_table({"rope_theta": 5e5, "partial_rotary_factor": r / d}, d, 4000).to(DEVICE)
    given = (fused[:, :32], fused[:, 32:40], positions, angles, interleaved)
    for found, truth in zip(
        run(kernel(rope, "rope"), *given), reference(naive(rope, "rope"), *given), strict=True
    ):
        assert_near(found, truth)


@all_dtypes
@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
@pytest.mark.parametrize("shape", [(1, 4096), (700, 4096), (33, 1024), (65, 40, 128)], ids=str)
def test_norms(shape: tuple[int, ...], residual: bool, dtype: torch.dtype) -> None:
    shape = pick(shape, (3, 40))
    x, more = randn(*shape, dtype=dtype), randn(*shape, dtype=dtype) if residual else None
    weight, bias = randn(shape[-1]), randn(shape[-1])
    for op, name, given in (
        (rms_norm, "rms_norm", (x, weight, 1e-6, more)),
        (layer_norm, "layer_norm", (x, weight, bias, 1e-5, more)),
    ):
        found, total = run(kernel(op, name), *given)
        truth, _ = reference(naive(op, name), *given)
        assert_near(found, truth)
        assert torch.equal(total, x if more is None else x + more)


@all_dtypes
@pytest.mark.parametrize("act", ["silu", "gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize(("rows", "width"), [(1, 14336), (700, 14336), (33, 768)])
def test_act_mul(rows: int, width: int, act: str, dtype: torch.dtype) -> None:
    x = randn(pick(rows, 3), 2 * pick(width, 40), dtype=dtype) * 3
    truth = reference(naive(act_mul, "act_mul"), x, act)
    assert_near(run(kernel(act_mul, "act_mul"), x, act), truth)


STATES = {
    "decode": [1] * pick(64, 3),
    "prompts": pick([1, 300, 5, 64, 0, 33], [1, 40, 0, 5]),
}


@all_dtypes
@pytest.mark.parametrize("batch", STATES)
def test_causal_conv(batch: str, dtype: torch.dtype) -> None:
    channels, where = pick(8192, 40), states(STATES[batch])
    x = randn(where.rows, channels + 64, dtype=dtype)[:, 32 : 32 + channels]
    state = randn(2 * len(where.before), channels, 3)
    given = (x, randn(channels, 4), randn(channels))
    wide = state.double()
    found = run(kernel(causal_conv, "causal_conv"), *given, state, where, "silu")
    truth = reference(naive(causal_conv, "causal_conv"), *given, wide, where, "silu")
    assert_near(found, truth)
    assert_near(state, wide)


RECURRENT = pytest.mark.parametrize("function", ["", "_deterministic"], ids=["fast", "rows"])


@RECURRENT
@all_dtypes
@pytest.mark.parametrize("new", [False, True], ids=["continued", "new"])
@pytest.mark.parametrize("batch", STATES)
def test_scan(batch: str, new: bool, dtype: torch.dtype, function: str) -> None:
    """Mamba 2 of 2.7B: 80 heads of 64, states of 128."""
    heads, p, n, where = pick(80, 2), pick(64, 16), pick(128, 24), states(STATES[batch], new=new)
    wide = randn(where.rows, heads * p + heads + 2 * n, dtype=dtype)
    x, dt, b, c = wide.split((heads * p, heads, n, n), 1)
    x, b, c = x.unflatten(1, (heads, p)), b[:, None], c[:, None]
    a, d, bias = (randn(heads) for _ in range(3))
    state = randn(2 * len(where.before), heads, p, n)
    given, late = (x, dt, -a.exp(), b, c, d, bias, (0.0, math.inf)), state.double()
    found = run(kernel(scan, f"scan{function}"), *given, state, where)
    truth = reference(naive(scan, "scan"), *given, late, where)
    assert_near(found, truth)
    assert_near(state, late, dtype)


@RECURRENT
@all_dtypes
@pytest.mark.parametrize("new", [False, True], ids=["continued", "new"])
@pytest.mark.parametrize("batch", STATES)
def test_delta_rule(batch: str, new: bool, dtype: torch.dtype, function: str) -> None:
    """Qwen3-Next: 16 heads of keys, 32 of values, all of 128."""
    keys, heads, d = pick(16, 1), pick(32, 2), pick(128, 24)
    where = states(STATES[batch], new=new)
    widths = (keys * d, keys * d, heads * d, heads, heads)
    q, k, v, b, a = randn(where.rows, sum(widths), dtype=dtype).split(widths, 1)
    q, k, v = (x.unflatten(1, (-1, d)) for x in (q, k, v))
    state = randn(2 * len(where.before), heads, d, d)
    given, late = (q, k, v, b, a, -randn(heads).exp(), randn(heads)), state.double()
    found = run(kernel(delta_rule, f"delta_rule{function}"), *given, state, where)
    truth = reference(naive(delta_rule, "delta_rule"), *given, late, where)
    assert_near(found, truth)
    assert_near(state, late, dtype)


RULES = {
    "30b-a3b": (128, RoutingRule(8, True), False),
    "v2-lite": (64, RoutingRule(6), False),
    "v3": (256, RoutingRule(8, True, True, 8, 4, 2.5), True),
    "gpt-oss": (32, RoutingRule(4, True), False),
    "qwen3-next": (512, RoutingRule(10, True), False),
}


@all_dtypes
@pytest.mark.parametrize("rows", [1, 33, 2000])
@pytest.mark.parametrize("model", RULES)
def test_route(model: str, rows: int, dtype: torch.dtype) -> None:
    count, rule, biased = RULES[model]
    logits = randn(pick(rows, 5), count, dtype=dtype)
    bias = randn(count) * 0.1 if biased else None
    experts, weights = run(kernel(moe_route, "route"), logits, rule, bias)
    chosen, truth = reference(naive(moe_route, "route"), logits, rule, bias)
    same = (experts == chosen).all(1)
    # Scores that differ by rounding alone may be exchanged.
    assert int((~same).sum()) <= (max(1, len(same) // 500) if biased else 0)
    assert_near(weights[same], truth[same], torch.float32)
    found = run(kernel(moe_route, "sort"), experts, count)
    for mine, wanted in zip(found, naive(moe_route, "sort")(experts, count), strict=True):
        assert torch.equal(mine, wanted)


EXPERTS = {
    "30b-a3b up": (128, 8, 1536, 2048),
    "30b-a3b down": (128, 8, 2048, 768),
    "v2-lite": (64, 6, 2816, 2048),
    "gpt-oss": (32, 4, 5760, 2880),
}


@dtypes
@pytest.mark.parametrize("function", ["grouped", "grouped_deterministic"])
@pytest.mark.parametrize("rows", [1, 33, 600])
@pytest.mark.parametrize("model", EXPERTS)
def test_grouped_matmul(model: str, rows: int, function: str, dtype: torch.dtype) -> None:
    count, top, n, k = pick(EXPERTS[model], (4, 2, 33, 40))
    weight = randn(count, n, k, dtype=dtype)
    copies = pick(rows, 9) * top
    x = randn(copies, k + 8, dtype=dtype)[:, 8:]
    experts = torch.randint(count, (copies,), device=DEVICE).sort().values
    found = run(kernel(grouped_matmul, function), x, weight, experts)
    assert_near(found, grouped_truth(x, weight, experts))


def grouped_truth(x: Tensor, weight: Tensor, experts: Tensor) -> Tensor:
    """The product of each row with the weight of its expert, in float64."""
    y = torch.empty(len(x), weight.shape[1], dtype=torch.float64, device=x.device)
    for expert in experts.unique().tolist():
        mine = experts == expert
        y[mine] = x[mine].double() @ weight[expert].double().T
    return y


@all_dtypes
@pytest.mark.parametrize("experts", [1, 8])
@pytest.mark.parametrize("rows", [1, 8, 33, 300])
def test_lora(rows: int, experts: int, dtype: torch.dtype) -> None:
    """The fused q, k and v of an 8B; eight pages of 16 ranks, of which a mixture has up to four."""
    rows, k = pick(rows, 5), pick(4096, 40)
    widths = pick((4096, 1024, 1024), (48, 16, 16))
    pages = torch.tensor(
        [[-1, -1, -1, -1], [3, -1, 5, -1], [2, 4, 1, 7], [-1, 6, -1, -1]], device=DEVICE
    ).int()
    a = randn(8 * experts, len(widths), 16, k, dtype=dtype) / k**0.5
    b = randn(8 * experts, 16, sum(widths), dtype=dtype)
    given: dict[str, Any] = {
        "x": randn(rows, k, dtype=dtype),
        "a": a.to(dtype),
        "b": b,
        "widths": widths,
        "pages": pages,
        "scales": torch.rand(pages.shape, device=DEVICE) + 0.5,
        "mixture": torch.randint(0, 4, (rows,), device=DEVICE).int(),
        "expert": torch.randint(experts, (rows,), device=DEVICE) if experts > 1 else None,
        "experts": experts,
    }
    y = randn(rows, sum(widths), dtype=dtype)
    truth = reference(naive(lora, "lora"), **given, y=double(y).clone())
    assert_near(run(kernel(lora, "lora"), **given, y=y), truth)


def test_penalize() -> None:
    rows, vocabulary = pick(64, 3), pick(151_936, 1030)
    logits = randn(rows, vocabulary) * 3
    counts = (torch.rand(rows, vocabulary, device=DEVICE) < 0.001).int() * 2
    seen = torch.rand(rows, vocabulary, device=DEVICE) < 0.001
    count = 5 * rows
    params = Penalties(
        counts=counts,
        seen=seen,
        repetition=torch.rand(rows, device=DEVICE) + 0.5,
        presence=randn(rows),
        frequency=randn(rows),
        bias_rows=torch.arange(count, device=DEVICE) % rows,
        bias_ids=torch.randperm(vocabulary, device=DEVICE)[:count],
        bias_values=randn(count),
    )
    truth = naive(penalize, "penalize")(logits.clone(), params)
    assert_near(run(kernel(penalize, "penalize"), logits.clone(), params), truth)


DRAWS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "greedy": True},
    "temperature": {"temperature": 0.7, "plain": True},
    "top_k": {"top_k": 20},
    "top_p": {"top_p": 0.95},
    "min_p": {"min_p": 0.05},
    "typical": {"typical": 0.9},
    "all": {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.01, "typical": 0.95},
}


@pytest.mark.parametrize("rows", [1, 64])
@pytest.mark.parametrize("name", DRAWS)
def test_sample(name: str, rows: int) -> None:
    rows, vocabulary = pick(rows, 3), pick(128_256, 1030)
    logits = randn(rows, vocabulary) * 3
    neutral = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical": 1.0}
    given = {**neutral, **DRAWS[name]}
    flags = {flag: given.pop(flag, False) for flag in ("greedy", "plain")}
    kinds = {"top_k": torch.int32}
    params = Draw(
        **{
            key: torch.full((rows,), value, dtype=kinds.get(key, torch.float32), device=DEVICE)
            for key, value in given.items()
        },
        seed=torch.randint(1 << 40, (rows,), device=DEVICE),
        position=torch.arange(rows, device=DEVICE),
        **flags,
    )
    found = run(kernel(sample, "sample"), logits, params)
    truth = naive(sample, "sample")(logits, params)
    assert int(((found < 0) | (found >= vocabulary)).sum()) == 0
    # A sum in another order can move a bound between two tokens.
    assert int((found != truth).sum()) <= rows // 32


@dtypes
@pytest.mark.parametrize("given", [{}, {"causal": True}, {"window": 64}], ids=str)
@pytest.mark.parametrize("heads", [Heads(16, 16, 64, 64), Heads(16, 2, 72, 72)], ids=str)
def test_varlen_attention(heads: Heads, given: dict[str, Any], dtype: torch.dtype) -> None:
    bounds = pick([0, 700, 701, 701, 1300, 1900], [0, 5, 5, 9])
    q = randn(bounds[-1], heads.q, heads.d, dtype=dtype)
    k, v = (randn(bounds[-1], heads.kv, heads.d, dtype=dtype) for _ in range(2))
    args = (q, k, v, bounds, heads.d**-0.5)
    truth = reference(naive(varlen_attention, "varlen_attention"), *args, **given)
    found = run(kernel(varlen_attention, "varlen_attention", "sdpa"), *args, **given)
    assert_near(found, truth)


@dtypes
def test_attention_has_the_same_result_in_a_captured_graph(dtype: torch.dtype) -> None:
    if not ON_GPU:
        pytest.skip("only a GPU captures graphs")
    case = paged(*BATCHES["decode"], MODELS["llama-8b"][0], dtype)
    attend = kernel(attention, "attention")
    expected, graph = attend(*case), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = attend(*case)
    found.fill_(torch.nan)
    graph.replay()
    assert torch.equal(found, expected)


def test_rows_that_see_all(dtype: torch.dtype = DTYPES[0]) -> None:
    """Images in a prompt: rows of `full` sequences attend to later positions."""
    case = paged(*BATCHES["mixed"], pick(MODELS["gemma3"][0], Heads(4, 2, 32, 32)), dtype)
    full = torch.zeros_like(case.batch.lengths)
    full[::2] = 1
    case = case._replace(batch=replace(case.batch, full=full))
    truth = reference(naive(attention, "attention"), *case)
    assert_near(run(kernel(attention, "attention"), *case), truth)
