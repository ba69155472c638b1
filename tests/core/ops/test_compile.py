"""Every kernel compiles for every target out of its own wrapper, and spills nothing."""

from typing import Any

import pytest
import torch
from torch import Tensor

from ostro.core.ops.penalize import Penalties
from ostro.core.ops.sample import Draw
from ostro.plugins.conformance.kernels import TARGETS, compile_for, poison, targets

BF16 = torch.bfloat16


def tensor(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def floats(*shape: int) -> Tensor:
    return tensor(*shape, dtype=torch.float32)


def ints(*shape: int) -> Tensor:
    return tensor(*shape, dtype=torch.int64)


def draw(**flags: bool) -> Draw:
    k = tensor(8, dtype=torch.int32)
    return Draw(floats(8), k, floats(8), floats(8), floats(8), ints(8), ints(8), **flags)


def fused(heads: int, d: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values as views of 64 fused rows, four query heads to a key head."""
    rows = tensor(64, (heads + heads // 2) * d).unflatten(1, (-1, d))
    q, k, v = rows.split((heads, heads // 4, heads // 4), dim=1)
    return q, k, v


Q, K, V = fused(32, 128)
CACHE = tensor(1000, 8, 16, 128)
LAUNCHES: dict[str, tuple[Any, ...]] = {
    "rms_norm": (tensor(64, 4096), floats(4096), 1e-6, tensor(64, 4096)),
    "rms_norm-heads": (Q, floats(128), 1e-6),
    "rms_norm-wide": (tensor(4, 16384), floats(16384), 1e-6, tensor(4, 16384)),
    "layer_norm": (tensor(64, 4096), floats(4096), floats(4096), 1e-6, tensor(64, 4096)),
    "layer_norm-heads": (Q, None, None, 1e-6),
    "layer_norm-wide": (tensor(4, 16384), *(floats(16384),) * 2, 1e-6, tensor(4, 16384)),
    "rope": (Q, K, ints(1, 64), floats(32768, 128)),
    "rope-pairs": (*fused(16, 80)[:2], ints(3, 64), floats(4096, 40), True, (4, 8, 8)),
    "act_mul": (tensor(64, 28672), "silu"),
    "act_mul-gelu": (tensor(64, 2 * 8191), "gelu"),
    "act_mul-gelu_tanh": (tensor(64, 28672), "gelu_tanh"),
    "kv_write": (K, V, CACHE, CACHE, ints(64)),
    "kv_write-half": (K, V, CACHE.half(), CACHE.half(), ints(64)),
    "penalize": (
        floats(8, 152064),
        Penalties(
            tensor(8, 152064, dtype=torch.int32),
            tensor(8, 152064, dtype=torch.bool),
            *(floats(8), floats(8), floats(8), ints(7), ints(7), floats(7)),
        ),
    ),
    "mask": (floats(8, 152064), ints(8), tensor(8, 4752, dtype=torch.int32)),
    "sample-greedy": (floats(8, 152064), draw(greedy=True)),
    "sample-plain": (floats(8, 151936), draw(plain=True)),
    "sample": (floats(8, 152064), draw()),
}


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize("name", LAUNCHES)
def test_compiles_without_spills(name: str, target: str) -> None:
    op = name.partition("-")[0]
    builds = compile_for(target, f"ostro.core.ops.{op}.triton:{op}", *LAUNCHES[name])
    assert builds
    for build in builds:
        assert build.spills == 0, build.kernel
        assert build.registers <= 128, build.kernel
        assert build.shared <= 16384, build.kernel


@pytest.mark.parametrize("target", ["sm_90", pytest.param("gfx1100", marks=pytest.mark.slow)])
def test_spills_are_seen(target: str) -> None:
    row = tensor(1, 1 << 18)
    (build,) = compile_for(target, "ostro.core.ops.rms_norm.triton:rms_norm", row, row[0], 1e-6)
    assert build.spills > 0


def test_the_hot_loop_is_found() -> None:
    """A greedy draw reads 4096 logits a trip with 256 threads: 16 each, in four wide loads."""
    greedy = LAUNCHES["sample-greedy"]
    (build,) = compile_for("sm_90", "ostro.core.ops.sample.triton:sample", *greedy)
    assert build.loads == {"128": 4}
    assert build.opcodes["MUFU"] in (0, 16)
    assert 1 < build.instructions_per(4096) < 20


@pytest.mark.parametrize(
    "make",
    [
        lambda dtype: torch.empty(3, 4, dtype=dtype),
        lambda dtype: torch.empty_like(torch.ones(3), dtype=dtype),
        lambda dtype: torch.ones(3).new_empty((2, 2), dtype=dtype),
        lambda dtype: torch.empty_strided((2, 2), (1, 2), dtype=dtype),
    ],
    ids=["empty", "empty_like", "new_empty", "empty_strided"],
)
def test_poison_fills_fresh_memory(make: Any) -> None:
    with poison():
        assert make(torch.float16).isnan().all()
        assert make(torch.float8_e4m3fn).float().isnan().all()
        assert (make(torch.int64) == 0x5A5A5A5A).all()
        assert (make(torch.uint8) == 0x5A).all()
        assert make(torch.bool).all()
    assert set(TARGETS) >= {"sm_75", "gfx1100"}
