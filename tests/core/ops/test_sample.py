"""sample: truncation against transformers, draws against the exact distribution, kernel = naive."""

import math
from types import ModuleType
from typing import Any

import pytest
import torch
import triton as compiler
import triton.language as tl
from torch import Tensor

from ostro.core.ops.sample import Draw, naive, triton
from ostro.plugins.conformance.kernels import DEVICE, poison

RULES: dict[str, dict[str, Any]] = {
    "temperature": dict(temperature=0.6, plain=True),
    "top_k": dict(top_k=7),
    "top_p": dict(top_p=0.8),
    "min_p": dict(min_p=0.08),
    "typical": dict(typical=0.6),
    "all": dict(temperature=1.4, top_k=20, top_p=0.9, min_p=0.01, typical=0.95),
    "cold": dict(temperature=0.05, top_p=0.999, typical=0.999),
    "one": dict(top_p=0.0),
}
MODULES = pytest.mark.parametrize("module", [naive, triton], ids=["naive", "triton"])


def params(rows: int, **rules: Any) -> Draw:
    """Neutral rules but for those given; every row has the seed 11, its position is its number."""
    kinds = dict(top_k=torch.int32, seed=torch.int64, position=torch.int64)
    neutral = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, typical=1.0, seed=11)
    flags = {name: rules.pop(name) for name in ("greedy", "plain") if name in rules}
    values = {**neutral, "position": torch.arange(rows), **rules}
    return Draw(
        **{
            name: torch.as_tensor(value, device=DEVICE)
            .to(kinds.get(name, torch.float32))
            .expand(rows)
            .contiguous()
            for name, value in values.items()
        },
        **flags,
    )


def exact(logits: Tensor, rules: dict[str, Any]) -> Tensor:
    """The distribution that transformers' processors leave, [n, V] float64."""
    generation = pytest.importorskip("transformers.generation")
    names = {
        "temperature": generation.TemperatureLogitsWarper,
        "min_p": generation.MinPLogitsWarper,
        "top_k": generation.TopKLogitsWarper,
        "typical": generation.TypicalLogitsWarper,
        "top_p": generation.TopPLogitsWarper,
    }
    for name, processor in names.items():
        if name in rules:
            logits = processor(rules[name])(None, logits)
    return logits.double().softmax(-1)


def spread(tokens: Tensor, expected: Tensor) -> float:
    """How far draws are from a distribution: chi-square as a normal deviate (Wilson-Hilferty)."""
    drawn = torch.bincount(tokens.cpu(), minlength=expected.numel()).double()
    assert drawn[expected == 0].sum() == 0, "a truncated token was drawn"
    kept = expected > 0
    mean = expected[kept] * tokens.numel()
    chi, freedom = ((drawn[kept] - mean) ** 2 / mean).sum().item(), max(int(kept.sum()) - 1, 1)
    third = 2 / (9 * freedom)
    return ((chi / freedom) ** (1 / 3) - (1 - third)) / math.sqrt(third)


def survivors(logits: Tensor, rules: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """What truncation leaves of one row."""
    neutral = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, typical=1.0)
    given = {name: value for name, value in rules.items() if name in neutral}
    return naive.survivors(logits - logits.max(), naive.Rule(**{**neutral, **given}))


@pytest.mark.parametrize("name", [name for name in RULES if name != "one"])
def test_keeps_what_transformers_keeps(name: str) -> None:
    torch.manual_seed(0)
    logits = torch.randn(40, 3000) * 3
    for row, expected in zip(logits, exact(logits, RULES[name]), strict=True):
        ids, weights = survivors(row, RULES[name])
        assert torch.equal(ids, (expected > 0).nonzero()[:, 0])
        torch.testing.assert_close(
            (weights / weights.sum()).double(), expected[ids], rtol=2e-5, atol=0
        )


@pytest.mark.parametrize("name", [name for name in RULES if name != "one"])
def test_draws_follow_the_distribution(name: str) -> None:
    torch.manual_seed(1)
    logits = torch.randn(1, 40) * 2
    u = naive.uniform(torch.full((100_000,), 11), torch.arange(100_000))
    ids, weights = survivors(logits[0], RULES[name])
    tokens = ids[naive.locate(weights, u)]
    assert spread(tokens, exact(logits, RULES[name])[0]) < 4
    drawn = naive.sample(logits.expand(100, -1).to(DEVICE), params(100, **RULES[name]))
    assert torch.equal(drawn.cpu(), tokens[:100])


def test_a_wrong_distribution_is_detected() -> None:
    torch.manual_seed(1)
    logits = torch.randn(1, 40) * 2
    u = naive.uniform(torch.full((100_000,), 11), torch.arange(100_000))
    ids, weights = survivors(logits[0], dict(top_k=6))
    tokens = ids[naive.locate(weights, u)]
    assert spread(tokens, exact(logits, dict(top_k=7))[0]) > 20
    assert spread(tokens, exact(logits, dict(top_k=6, temperature=1.2))[0]) > 20


def test_seeds_are_as_independent_as_positions() -> None:
    n = 100_000
    even = torch.full((64,), 1 / 64, dtype=torch.float64)
    for seed, position in (
        (torch.arange(n), torch.zeros(n, dtype=torch.int64)),
        (torch.full((n,), -5), torch.arange(n)),
        (torch.arange(n), torch.arange(n)),
    ):
        u = naive.uniform(seed, position)
        assert 0 <= u.min() and u.max() < 1
        assert spread((u * 64).long(), even) < 4
        # neighbours: pairs fall evenly on a grid of 8 x 8
        assert spread((u[:-1] * 8).long() * 8 + (u[1:] * 8).long(), even) < 4


def test_uniform_is_splitmix() -> None:
    mask = 2**64 - 1

    def mix(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & mask
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & mask
        return x ^ (x >> 31)

    golden = 0x9E3779B97F4A7C15
    pairs = [(0, 0), (1, 2), (-1, 3), (2**63 - 1, 2**40), (-(2**63), 12345)]
    seeds, positions = (torch.tensor(column) for column in zip(*pairs, strict=True))
    expected = [
        (mix(mix((seed + golden) & mask) + position * golden & mask) >> 40) / 2**24
        for seed, position in pairs
    ]
    assert naive.uniform(seeds, positions).tolist() == expected


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(("rows", "vocabulary"), [(2, 1), (3, 5), (3, 1000), (2, 5001)])
def test_triton(rows: int, vocabulary: int, name: str) -> None:
    torch.manual_seed(2)
    logits = torch.randn(rows, vocabulary + 3, device=DEVICE)[:, :vocabulary] * 3
    logits[0, vocabulary // 2] = -math.inf if vocabulary > 1 else 0.0
    rules = params(rows, **RULES[name])
    with poison():
        tokens = triton.sample(logits, rules)
    assert torch.equal(tokens, naive.sample(logits, rules))


@pytest.mark.parametrize("candidates", [4, 64])
def test_triton_draws_from_few_candidates(candidates: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of these rows keep fewer tokens than there are candidates, others more; many are
    equal.
    """
    monkeypatch.setattr(triton, "CANDIDATES", candidates)
    torch.manual_seed(candidates)
    rows = 32
    logits = (torch.randn(rows, 300, device=DEVICE) * 4).round() / 2

    def choose(*values: float) -> Tensor:
        return torch.tensor(values)[torch.randint(len(values), (rows,))]

    rules = params(
        rows,
        temperature=choose(0.3, 1, 1.7),
        top_k=choose(0, 1, 5, 20, 5000),
        top_p=choose(1, 0.9, 0.5, 0.999),
        min_p=choose(0, 0, 0.05),
        typical=choose(1, 1, 0.8),
    )
    with poison():
        tokens = triton.sample(logits, rules)
    assert torch.equal(tokens, naive.sample(logits, rules))


@pytest.mark.parametrize(
    ("rule", "candidates", "passes"),
    [
        (dict(top_k=20, top_p=0.95), 64, 0),
        (dict(min_p=0.1), 64, 0),
        (dict(min_p=0.1, top_k=90), 64, 0),
        (dict(top_p=0.5), 64, 1),
        (dict(top_k=64), 64, 4),
        (dict(top_k=90), 100, 0),
        (dict(top_p=0.9999), 64, 4),
        (dict(top_p=0.9999), 100, 1),
        (dict(min_p=1e-9), 100, 0),
        (dict(typical=0.9), 64, 4),
    ],
    ids=str,
)
def test_triton_reads_few_candidates_and_not_the_row(
    rule: dict[str, Any], candidates: int, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`passes` over the row after the first: 1 sums it for top_p, bisection takes more."""
    if not compiler.knobs.runtime.interpret:
        pytest.skip("only the interpreter calls what is replaced here")
    monkeypatch.setattr(triton, "CANDIDATES", candidates)
    torch.manual_seed(6)
    logits = torch.randn(1, 100) * 3
    count, weigh = 0, triton.weigh

    def counted(*arguments: Any) -> Any:
        nonlocal count
        count += 1  # once per block, and the row is one
        return weigh(*arguments)

    monkeypatch.setattr(triton, "weigh", counted)
    tokens = triton.sample(logits, params(1, **rule))
    assert torch.equal(tokens, naive.sample(logits, params(1, **rule)))
    assert count == passes if passes < 4 else count >= passes


def test_the_order_of_equal_candidates_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of torch's topk differ in it, and with the number of rows torch takes another."""
    torch.manual_seed(7)
    logits = torch.randn(1, 6).mul(2).repeat(1, 50).expand(12, -1).to(DEVICE)
    rules = params(12, temperature=1.7, top_p=0.97)
    tokens, topk = triton.sample(logits, rules), Tensor.topk

    def reversed_ties(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        best, ids = topk(x.flip(-1), k)
        return best, x.shape[-1] - 1 - ids

    monkeypatch.setattr(Tensor, "topk", reversed_ties)
    assert not torch.equal(logits.topk(200)[1], topk(logits, 200)[1])
    assert torch.equal(triton.sample(logits, rules), tokens)


def test_triton_draws_beyond_the_first_block() -> None:
    """Equal weights: the draw of a row lies at its uniform number."""
    logits = torch.zeros(6, 3 * triton.BLOCK + 1, device=DEVICE)
    rules = params(6, plain=True)
    tokens = triton.sample(logits, rules)
    assert torch.equal(tokens, naive.sample(logits, rules))
    blocks = set((tokens // triton.BLOCK).tolist())
    assert blocks == {0, 1, 2}, f"choose seeds that draw from all blocks: {tokens = }"


@MODULES
def test_top_p_ends_with_the_token_that_reaches_it(module: ModuleType) -> None:
    """Of these weights the first tokens weigh exactly top_p; no further one is drawn."""
    logits = torch.tensor([16.0, 8, 4, 4], device=DEVICE).log().expand(64, -1)
    for top_p, kept in ((0.5, 1), (0.75, 2), (0.76, 4)):
        tokens = module.sample(logits, params(64, top_p=top_p))
        assert len(tokens.unique()) == kept


@compiler.jit
def threshold_kernel(logits, out, n, top, scale, limit, KEY: tl.constexpr, BLOCK: tl.constexpr):
    wide = float("inf")
    least = triton.threshold(logits, n, top, scale, 0.0, -wide, -1.75, wide, limit, KEY, BLOCK)
    tl.store(out, least)


@compiler.jit
def candidate_kernel(candidates, ids, out, u):
    given = tl.load(u)
    token = triton.draw_candidate(candidates, ids, 4, 9, 0.0, 1.0, 0.0, 2, 1.0, 0.0, given, 4)
    tl.store(out, token)


@pytest.mark.parametrize(("u", "token"), [(0.0, 3), (0.49, 3), (0.5, 7), (0.99, 7)])
def test_triton_draws_the_first_candidate_that_exceeds_u(u: float, token: int) -> None:
    """Of nine tokens, two of equal weight are kept."""
    candidates = torch.tensor([0.0, 0.0, -1.0, -2.0], device=DEVICE)
    ids, given = torch.tensor([7, 3, 5, 0], device=DEVICE), torch.tensor([u], device=DEVICE)
    out = torch.empty(1, dtype=torch.int32, device=DEVICE)
    candidate_kernel[(1,)](candidates, ids, out, given)
    assert out.item() == token


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["count", "typical", "mass"])
def test_triton_finds_the_very_same_thresholds(kind: str) -> None:
    torch.manual_seed(5)
    logits = (torch.randn(1500, device=DEVICE) * 3).clamp(max=7)
    top = logits.max()
    scores = ((logits - top) * (1 / 0.7)).clamp_(min=naive.LEAST)
    weights = torch.ones_like(scores) if kind == "count" else scores.exp()
    key = -(scores + 1.75).abs() if kind == "typical" else scores
    code = dict(count=triton.COUNT, typical=triton.TYPICAL, mass=triton.MASS)[kind]
    for share in (0.0, 0.004, 0.3, 0.9, 0.9999):
        limit = share * float(weights.sum())
        with poison():
            least = torch.empty(1, device=DEVICE)
            threshold_kernel[(1,)](logits, least, 1500, top.item(), 1 / 0.7, limit, code, 1024)
        assert least.item() == naive.threshold(key, weights, limit).item(), share


@pytest.mark.sample(1)
@MODULES
def test_equal_logits_stay_or_go_together(module: ModuleType) -> None:
    n = 6 if module is triton else 2000
    logits = torch.tensor([2.0, 1.0, 1.0, 1.0, 0.0], device=DEVICE).expand(n, -1).contiguous()
    for rules in (dict(top_k=2), dict(top_p=0.5), dict(min_p=math.exp(-1) * 0.99)):
        tokens = module.sample(logits, params(n, **rules))
        drawn = set(tokens.tolist())
        assert drawn == {0, 1, 2, 3} or (module is triton and drawn < {0, 1, 2, 3}), rules


@pytest.mark.sample(1)
@MODULES
def test_a_rows_draw_does_not_depend_on_the_batch(module: ModuleType) -> None:
    torch.manual_seed(3)
    rows = 8
    logits = torch.randn(rows, 300, device=DEVICE) * 2
    given = dict(
        temperature=torch.tensor([0.0, 1.0, 0.7, 1.0, 2.0, 0.0, 1.0, 1.0]),
        top_k=torch.tensor([0, 0, 5, 0, 50, 3, 0, 0]),
        top_p=torch.tensor([1.0, 1.0, 1.0, 0.5, 0.9, 1.0, 1.0, 1.0]),
        typical=torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 1.0]),
        seed=torch.tensor([1, 2, 3, 4, 5, 6, 7, -8]),
        position=torch.tensor([9, 8, 7, 6, 5, 4, 3, 2**40]),
    )
    tokens = module.sample(logits, params(rows, **given))
    for i in (7, 4, 2, 0):
        alone = {name: value[i : i + 1] for name, value in given.items()}
        token = module.sample(logits[i : i + 1], params(1, **alone))
        assert token.item() == tokens[i].item()


@MODULES
@pytest.mark.parametrize("greedy", [True, False])
def test_temperature_zero_takes_the_first_of_the_largest(module: ModuleType, greedy: bool) -> None:
    logits = torch.zeros(2, 700, device=DEVICE)
    logits[0, [300, 40, 650]] = 5.0
    tokens = module.sample(logits, params(2, temperature=0.0, greedy=greedy, top_k=3))
    assert tokens.tolist() == [40, 0]


@pytest.mark.sample(1)
@MODULES
def test_rows_that_are_not_finite_draw_nothing(module: ModuleType) -> None:
    logits = torch.randn(7, 20, device=DEVICE)
    logits[0, 3], logits[1], logits[2, 5] = math.nan, -math.inf, math.inf
    logits[3], logits[4, [0, 19]] = math.nan, torch.tensor([-math.inf, math.nan])
    logits[5, 1:] = -math.inf  # a mask
    for rules in ({"greedy": True, "temperature": 0.0}, *RULES.values()):
        tokens = module.sample(logits, params(7, **rules))
        assert tokens[:5].tolist() == [-1] * 5
        assert tokens[5] == 0 and 0 <= tokens[6] < 20
