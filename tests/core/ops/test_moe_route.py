"""route and sort: the naive versions against routers of transformers and loops, the kernels against
the naive versions, and the machine code of the Triton kernels.
"""

from __future__ import annotations

import math
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from ostro.core.errors import InvalidTensor
from ostro.core.ops import Op, Target
from ostro.core.ops.moe_route import KERNELS, SORT, RoutingRule, naive, native, triton
from ostro.plugins.conformance.kernels import DEVICE, compile_for, poison, targets

E, TOP, GROUPS, KEPT, FACTOR = 24, 4, 6, 2, 1.7
GROUPED: dict[str, Any] = {"groups": GROUPS, "best_groups": KEPT, "factor": FACTOR}
V2: dict[str, Any] = {"routed_scaling_factor": FACTOR, "n_group": GROUPS, "topk_group": KEPT}
REFERENCES: dict[str, tuple[type, dict[str, Any], RoutingRule]] = {
    "mixtral": (MixtralTopKRouter, {}, RoutingRule(TOP, True)),
    "qwen3_moe": (Qwen3MoeTopKRouter, {"norm_topk_prob": False}, RoutingRule(TOP)),
    "qwen3_moe, to one": (Qwen3MoeTopKRouter, {"norm_topk_prob": True}, RoutingRule(TOP, True)),
    "gpt_oss": (GptOssTopKRouter, {}, RoutingRule(TOP, True)),
    "deepseek_v2, no groups": (
        DeepseekV2TopkRouter,
        V2 | {"topk_method": "greedy"},
        RoutingRule(TOP, factor=FACTOR),
    ),
    "deepseek_v2": (
        DeepseekV2TopkRouter,
        V2 | {"topk_method": "group_limited_greedy"},
        RoutingRule(TOP, **GROUPED),
    ),
    "deepseek_v3": (
        DeepseekV3TopkRouter,
        V2 | {"norm_topk_prob": False},
        RoutingRule(TOP, sigmoid=True, **GROUPED),
    ),
    "deepseek_v3, to one": (
        DeepseekV3TopkRouter,
        V2 | {"norm_topk_prob": True},
        RoutingRule(TOP, True, sigmoid=True, **GROUPED),
    ),
}
"""Routers, what their config says beside the sizes, and the rule that is theirs."""

SHAPES = {
    3: (2, 3, 2),
    8: (2, 4, 2),
    60: (4, 5, 3),
    128: (8, 8, 4),
    160: (6, 8, 3),
    256: (8, 8, 4),
    384: (16, 6, 2),
    512: (1, 2, 1),
}
"""By the number of experts: how many are chosen, how many groups there are and are kept."""

MANY = [pytest.param(e, marks=() if e in (3, 60, 256) else pytest.mark.slow) for e in SHAPES]

RULES: dict[str, tuple[dict[str, Any], bool]] = {
    "softmax over all": ({}, False),
    "softmax over the chosen": ({"renormalise": True}, False),
    "softmax with a bias": ({"factor": 0.5}, True),
    "softmax in groups": ({"groups": True, "factor": 1.7}, False),
    "sigmoid": ({"sigmoid": True}, False),
    "sigmoid in groups with a bias": (
        {"sigmoid": True, "groups": True, "renormalise": True, "factor": 2.5},
        True,
    ),
    "softmax over the chosen, in groups with a bias": (
        {"groups": True, "renormalise": True},
        True,
    ),
}
"""Fields of a rule, and whether there is a bias."""

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
KERNEL_DEVICES = [(triton, DEVICE), (native, torch.device("cpu"))]
MODULES = pytest.mark.parametrize(("module", "device"), KERNEL_DEVICES, ids=["triton", "native"])
ALL = pytest.mark.parametrize(
    ("module", "device"),
    [(naive, torch.device("cpu")), *KERNEL_DEVICES],
    ids=["naive", "triton", "native"],
)


def made(name: str, experts: int) -> tuple[RoutingRule, Tensor | None]:
    """The rule of that name for so many experts, and its bias."""
    fields, biased = RULES[name]
    top, groups, kept = SHAPES[experts]
    if "groups" in fields:
        fields = fields | {"groups": groups, "best_groups": kept}
    torch.manual_seed(experts)
    return RoutingRule(top, **fields), torch.randn(experts) * 0.1 if biased else None


def dense(choice: tuple[Tensor, Tensor], experts: int) -> Tensor:
    """What every expert weighs for every row, [T, E]."""
    chosen, weights = choice
    return torch.zeros(len(chosen), experts).scatter_(1, chosen, weights)


def theirs(name: str, logits: Tensor, bias: Tensor) -> Tensor:
    """What a router of transformers makes of these logits: its weight is the identity."""
    kind, fields, rule = REFERENCES[name]
    sizes = ("hidden_size", "num_experts", "num_local_experts")
    config = SimpleNamespace(num_experts_per_tok=rule.top, **dict.fromkeys(sizes, E), **fields)
    router = kind(config)
    router.weight.data = torch.eye(E)
    if kind is DeepseekV3TopkRouter:
        router.e_score_correction_bias.copy_(bias)
    with torch.no_grad():
        _, weights, chosen = router(logits)
    return dense((chosen, weights), E)


@pytest.mark.parametrize("name", REFERENCES)
def test_naive_equals_transformers_and_no_other_rule_does(name: str) -> None:
    torch.manual_seed(0)
    logits, some = torch.randn(50, E) * 2, torch.randn(E) * 0.3
    kind, _, rule = REFERENCES[name]
    bias = some if kind is DeepseekV3TopkRouter else None
    truth = theirs(name, logits, some)
    torch.testing.assert_close(dense(naive.route(logits, rule, bias), E), truth)
    bugs = [
        ({"top": TOP - 1}, bias),
        ({"renormalise": not rule.renormalise}, bias),
        ({"sigmoid": not rule.sigmoid}, bias),
        ({"factor": 1.1 * rule.factor}, bias),
        ({"groups": 2, "best_groups": 1}, bias),
        ({"groups": 1} if rule.groups > 1 else {"groups": 2 * GROUPS, "best_groups": KEPT}, bias),
        ({}, some if bias is None else None),
    ]
    for fields, wrong in bugs:
        found = dense(naive.route(logits, rule._replace(**fields), wrong), E)
        assert (found - truth).abs().max() > 2e-3 * truth.std(), (fields, wrong is bias)


@ALL
def test_of_equals_the_first_is_chosen(module: ModuleType, device: torch.device) -> None:
    nan, inf = math.nan, math.inf
    rows = [
        [1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
        [0.0, 2.0, -0.0, 2.0, 0.0, -1.0],
        [-inf, -inf, -inf, 3.0, -inf, -inf],
        [-nan, 5.0, nan, inf, -inf, nan],
        [-inf, -inf, -inf, -inf, -inf, -inf],
        [-3e38, -inf, 1e-45, -1e-45, -0.0, 0.0],
    ]
    best = [
        [0, 1, 2, 3],
        [1, 3, 0, 2],
        [3, 0, 1, 2],
        [0, 2, 5, 3],
        [0, 1, 2, 3],
        [2, 4, 5, 3],
    ]
    logits = torch.tensor(rows, device=device)
    assert module.route(logits, RoutingRule(4))[0].tolist() == best
    whole = module.route(logits[:3], RoutingRule(6, True))[0]
    assert whole.sort().values.tolist() == [list(range(6))] * 3


@ALL
def test_of_equal_groups_the_first_is_kept(module: ModuleType, device: torch.device) -> None:
    logits = torch.tensor([[1.0, 4.0, 2.0, 4.0, 4.0, 3.0], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    rule = RoutingRule(3, groups=3, best_groups=2)
    assert module.route(logits.to(device), rule)[0].tolist() == [[1, 3, 2], [0, 1, 2]]
    # 4 + 1 and 4 + 2 are less than 4 + 3; scores of 0.5 are alike, and so the bias alone decides
    bias = torch.tensor([1.0, 4.0, 2.0, 4.0, 4.0, 3.0], device=device)
    rule = RoutingRule(3, sigmoid=True, groups=3, best_groups=2)
    assert module.route(logits[1:].to(device), rule, bias)[0].tolist() == [[3, 4, 5]]


@ALL
def test_too_small_groups_are_filled_from_other_groups(
    module: ModuleType, device: torch.device
) -> None:
    logits = torch.tensor([[1.0, 4.0, 2.0, 5.0, 4.0, 3.0]], device=device)
    chosen, weights = module.route(logits, RoutingRule(5, groups=3, best_groups=1))
    assert chosen.tolist() == [[3, 2, 0, 1, 4]]
    torch.testing.assert_close(weights[0], logits.softmax(-1)[0, chosen[0]])


@pytest.mark.sample(4)
@MODULES
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("experts", MANY)
def test_kernels_equal_naive(
    experts: int, name: str, module: ModuleType, device: torch.device
) -> None:
    rule, bias = made(name, experts)
    there = None if bias is None else bias.to(device)
    for rows, dtype in zip([65, 7, 1, 0], [*DTYPES, DTYPES[0]], strict=True):
        logits = (torch.randn(rows, experts + 5) * 3).to(dtype)[:, 5:]
        with poison():
            chosen, weights = module.route(logits.to(device), rule, there)
        expected = naive.route(logits, rule, bias)
        assert torch.equal(chosen.cpu(), expected[0])
        assert weights.dtype == torch.float32
        torch.testing.assert_close(weights.cpu(), expected[1], rtol=2e-5, atol=1e-7)


@pytest.mark.sample(4)
# the interpreter's maximum over nothing but NaN
@pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning")
@ALL
@pytest.mark.parametrize("name", RULES)
def test_any_logits_give_distinct_experts(
    name: str, module: ModuleType, device: torch.device
) -> None:
    rule, bias = made(name, 60)
    kinds = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e38, -1e38, 1.0])
    torch.manual_seed(0)
    logits = kinds[torch.randint(len(kinds), (40, 60))]
    logits[:3] = kinds[:3, None]
    chosen = module.route(logits.to(device), rule, None if bias is None else bias.to(device))[0]
    assert chosen.min() >= 0 and chosen.max() < 60
    assert all(len(set(row)) == rule.top for row in chosen.tolist())


@pytest.mark.slow
@MODULES
def test_a_row_has_the_same_bits_in_any_company(module: ModuleType, device: torch.device) -> None:
    for name in RULES:
        rule, bias = made(name, 160)
        there = None if bias is None else bias.to(device)
        logits = torch.randn(9, 160, device=device)
        together = module.route(logits, rule, there)
        for row in range(9):
            some = slice(row, row + 1 + row % 3)
            alone = module.route(logits[some], rule, there)
            for a, b in zip(alone, together, strict=True):
                assert torch.equal(a, b[some])


@ALL
@pytest.mark.parametrize("fields", [{"top": 9}, {"groups": 3, "best_groups": 2}], ids=str)
def test_rules_that_do_not_fit(
    fields: dict[str, int], module: ModuleType, device: torch.device
) -> None:
    with pytest.raises(InvalidTensor, match="routes over 8 experts"):
        module.route(torch.zeros(2, 8, device=device), RoutingRule(2)._replace(**fields))


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("rows", "top", "count"), [(1, 1, 1), (5, 2, 3), (7, 8, 60), (65, 6, 160), (0, 4, 8), (3, 0, 8)]
)
@ALL
def test_sort(rows: int, top: int, count: int, module: ModuleType, device: torch.device) -> None:
    torch.manual_seed(rows)
    experts = torch.rand(rows, count).argsort(1)[:, :top]
    with poison():
        found = module.sort(experts.to(device), count)
    expert_of_copy, row_of_copy, places = (each.cpu() for each in found)
    copies = sorted(
        (expert, row, column)
        for row, line in enumerate(experts.tolist())
        for column, expert in enumerate(line)
    )
    assert expert_of_copy.tolist() == [expert for expert, _, _ in copies]
    assert row_of_copy.tolist() == [row for _, row, _ in copies]
    assert places.shape == (rows, top)
    assert [int(places[row, column]) for _, row, column in copies] == list(range(len(copies)))


@MODULES
def test_sort_more_copies_than_are_counted_at_a_time(
    module: ModuleType, device: torch.device
) -> None:
    experts = torch.rand(700, 5, generator=torch.manual_seed(0)).argsort(1)
    with poison():
        found = module.sort(experts.to(device), 5)
    for a, b in zip(found, naive.sort(experts, 5), strict=True):
        assert torch.equal(a.cpu(), b)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("kernels", [KERNELS, SORT], ids=["route", "sort"])
@pytest.mark.parametrize(("device", "kernel"), [("cuda", "triton"), ("cpu", "native")])
def test_choice(kernels: Any, device: str, kernel: str, deterministic: bool) -> None:
    target = Target(device=torch.device(device), dtype=torch.bfloat16, deterministic=deterministic)
    assert Op(kernels).select(target).kernel.name == kernel


def tensor(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


V3 = RoutingRule(8, True, True, 8, 4, 2.5)
LAUNCHES: dict[str, tuple[Any, ...]] = {
    "mixtral": (tensor(64, 8, dtype=torch.bfloat16), RoutingRule(2, True)),
    "qwen3_moe": (tensor(4096, 128, dtype=torch.bfloat16), RoutingRule(8, True)),
    "deepseek_v2": (tensor(8, 160, dtype=torch.float32), RoutingRule(6, False, False, 8, 3, 16.0)),
    "deepseek_v3": (
        tensor(64, 256, dtype=torch.float32),
        V3,
        tensor(256, dtype=torch.float32),
    ),
    "kimi": (
        tensor(64, 384, dtype=torch.float32),
        RoutingRule(8, True, True),
        tensor(384, dtype=torch.float32),
    ),
    "qwen3_next": (tensor(7, 512, dtype=torch.float16), RoutingRule(10)),
    "as many as allowed": (tensor(7, 4096, dtype=torch.float16), RoutingRule(16)),
}
SORTED = {"a few": (4, 8, 128), "many": (4096, 8, 256)}


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize("name", LAUNCHES)
def test_route_compiles_without_spills(name: str, target: str) -> None:
    (build,) = compile_for(target, "ostro.core.ops.moe_route.triton:route", *LAUNCHES[name])
    assert build.spills == 0
    assert build.registers <= 128
    assert build.shared <= 16384


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize("name", SORTED)
def test_sort_compiles_without_spills(name: str, target: str) -> None:
    rows, top, count = SORTED[name]
    experts = tensor(rows, top, dtype=torch.int64)
    (build,) = compile_for(target, "ostro.core.ops.moe_route.triton:sort", experts, count)
    assert build.spills == 0
    assert build.registers <= 128
    assert build.shared <= 16384
