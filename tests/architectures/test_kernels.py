"""The fused kernels of single architectures: against their naive versions, and in their models."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from ostro.architectures.gemma2 import kernels as gemma2
from ostro.architectures.gemma2 import naive as gemma2_naive
from ostro.architectures.qwen3 import kernels as qwen3
from ostro.architectures.qwen3 import naive as qwen3_naive
from ostro.architectures.qwen3 import native as qwen3_native
from ostro.core.errors import Unsupported
from ostro.core.ops import Fused, Target
from ostro.core.ops.attention import AttentionMetadata
from ostro.core.ops.rope.scaling import rope_table
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import resolve
from ostro.core.settings import Settings
from ostro.plugins.caches.paged.kind import Pages
from ostro.plugins.conformance.kernels import DEVICE, compile_for, poison, targets
from ostro.plugins.conformance.parity import BAR, deviation, subject

BLOCK = 4
SLOTS = {
    "decode": [17, 2, 8],
    "prefill": [5, 6, 7, 8, 9],
    "padded": [6, -1, 7, -1],
    "padding": [-1, -1],
    "none": [],
}


def ragged(slots: Tensor) -> AttentionMetadata:
    """A batch of which only the slots matter."""
    unused = slots.new_zeros(0, dtype=torch.int32)
    return AttentionMetadata(unused, unused, unused, slots, max_queries=1, max_length=1)


def heads(
    slots: list[int], q_heads: int, k_heads: int, d: int, dtype: torch.dtype, cache: torch.dtype
) -> list[Any]:
    """The arguments of `norm_rope_write`: q, k, v as views of fused rows, caches full of ones."""
    torch.manual_seed(0)
    rows = len(slots)
    fused = torch.randn(rows, (q_heads + 2 * k_heads) * d + 3, device=DEVICE).to(dtype)[:, 3:]
    q, k, v = fused.unflatten(1, (-1, d)).split((q_heads, k_heads, k_heads), 1)
    shape = (6, k_heads, BLOCK, d)
    k_cache, v_cache = (torch.ones(shape, device=DEVICE).to(cache) for _ in range(2))
    pages = Pages(k_cache, v_cache, ragged(torch.tensor(slots, dtype=torch.int64, device=DEVICE)))
    weights = (1 + 0.3 * torch.randn(2, d, device=DEVICE)).unbind()
    positions = torch.randint(0, 50, (1, rows), device=DEVICE)
    angles = rope_table({"rope_theta": 1e3}, d, 50).to(DEVICE)
    return [q, k, v, *weights, 1e-3, positions, angles, pages]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", [(5, 2, 32), (2, 1, 20), (9, 3, 128), (1, 1, 2)], ids=str)
@pytest.mark.parametrize("name", SLOTS)
@pytest.mark.parametrize("module", [qwen3, qwen3_native], ids=["triton", "native"])
def test_norm_rope_write(
    module: ModuleType, name: str, shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    ours = heads(SLOTS[name], *shape, dtype, dtype)
    theirs = heads(SLOTS[name], *shape, dtype, dtype)
    with poison():
        q = module.norm_rope_write(*ours)
    expected = qwen3_naive.norm_rope_write(*theirs)
    torch.testing.assert_close(q, expected)
    torch.testing.assert_close(ours[-1].k, theirs[-1].k)
    assert torch.equal(ours[-1].v, theirs[-1].v)
    written = sum(slot >= 0 for slot in SLOTS[name])
    changed = (ours[-1].k != 1).any(-1).any(1)
    assert int(changed.sum()) == written, "a row landed in a place that is not its own"


@pytest.mark.parametrize("module", [qwen3, qwen3_native], ids=["triton", "native"])
def test_norm_rope_write_casts_to_the_caches_type(module: ModuleType) -> None:
    ours = heads([3, 9], 4, 2, 32, torch.float32, torch.float16)
    theirs = heads([3, 9], 4, 2, 32, torch.float32, torch.float16)
    with poison():
        module.norm_rope_write(*ours)
    qwen3_naive.norm_rope_write(*theirs)
    torch.testing.assert_close(ours[-1].k, theirs[-1].k)
    assert torch.equal(ours[-1].v, theirs[-1].v)


def test_norm_rope_write_turns_whole_heads_only() -> None:
    arguments = heads([0], 1, 1, 32, torch.float32, torch.float32)
    arguments[-2] = arguments[-2][:, :16]
    with pytest.raises(Unsupported, match="whole heads of 32, not 16"):
        qwen3.norm_rope_write(*arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", [(1, 7), (5, 100), (3, 1), (2, 2304), (4, 33), (0, 8)], ids=str)
def test_norm_add_norm(shape: tuple[int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, residual = torch.randn(2, shape[0], shape[1] + 5, device=DEVICE).to(dtype)[..., 5:]
    after, before = torch.randn(2, shape[1], device=DEVICE)
    with poison():
        ours = gemma2.norm_add_norm(x, residual, after, before, 1e-6)
    expected = gemma2_naive.norm_add_norm(x, residual, after, before, 1e-6)
    torch.testing.assert_close(ours, expected)


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def launch(d: int, cache: torch.dtype) -> list[Any]:
    """64 rows of 32 query and 8 key heads."""
    q, k, v = meta(64, 48 * d).unflatten(1, (-1, d)).split((32, 8, 8), 1)
    pages = [meta(1000, 8, 16, d, dtype=cache) for _ in range(2)]
    norms = [meta(d, dtype=torch.float32) for _ in range(2)]
    ints = [meta(1, 64, dtype=torch.int64), meta(64, dtype=torch.int64)]
    angles = meta(4096, d, dtype=torch.float32)
    return [q, k, v, *norms, 1e-6, ints[0], angles, Pages(*pages, ragged(ints[1]))]


def rows(d: int) -> list[Any]:
    return [meta(64, d), meta(64, d), *(meta(d, dtype=torch.float32) for _ in range(2)), 1e-6]


LAUNCHES: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "qwen3": (qwen3.norm_rope_write, launch(128, torch.bfloat16)),
    "qwen3-half": (qwen3.norm_rope_write, launch(128, torch.float16)),
    "gemma2-2b": (gemma2.norm_add_norm, rows(2304)),
    "gemma2-27b": (gemma2.norm_add_norm, rows(4608)),
}


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize("name", LAUNCHES)
def test_compiles_without_spills(name: str, target: str) -> None:
    wrapper, arguments = LAUNCHES[name]
    (build,) = compile_for(target, f"{wrapper.__module__}:{wrapper.__name__}", *arguments)
    assert build.spills == 0
    assert build.registers <= 128
    assert build.shared <= 16384


def settled(model: torch.nn.Module) -> list[Fused]:
    return [op for m in model.modules() for op in vars(m).values() if isinstance(op, Fused)]


@pytest.mark.parametrize("name", ["qwen3", "gemma2", "gemma3"])
def test_a_model_says_the_same_fused(name: str) -> None:
    """No Triton runs on a CPU, so the naive version takes the kernel's place."""
    plugins = PluginManager()
    plugins.load(Settings())
    with subject(plugins, name) as tiny:
        loaded = tiny.load(device="cpu")
        fused = settled(loaded.model)
        assert fused, "the family has a fused kernel"
        for op in fused:
            op.on = False
        engine = tiny.engine(loaded)
        plain = engine.runner.logits(tiny.prompt)
        for op in fused:
            op.kernel, op.on = resolve(op.kernels[-1].call), True
        same = engine.runner.logits(tiny.prompt)
        assert deviation(same, plain) <= BAR / 10
        fused[0].kernel = lambda x, *rest: broken(name, x)
        assert deviation(engine.runner.logits(tiny.prompt), plain) > BAR, "it is not called"


def broken(name: str, x: Tensor) -> Any:
    return x if name == "qwen3" else (x, x)


@pytest.mark.parametrize("name", ["qwen3", "gemma2"])
def test_a_gpu_takes_the_kernel(name: str) -> None:
    """Chosen for a CUDA target, also where reproducible rows are asked for."""
    kernels = {"qwen3": qwen3_naive.KERNELS, "gemma2": gemma2_naive.KERNELS}[name]
    for deterministic in (False, True):
        op = Fused(kernels, head_dim=128, whole=True)
        target = Target(
            device=torch.device("cuda"), dtype=torch.bfloat16, deterministic=deterministic
        )
        assert op.select(target).kernel.name == "triton" and op.on
    choice = op.select(Target(device=torch.device("cpu"), dtype=torch.float64))
    assert choice.kernel.name == "plain composition" and not op.on
