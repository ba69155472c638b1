"""No native kernel reads or writes outside of the tensors that it is given.

Each kernel is called with wrong sizes, types, strides and devices, in a process of its own, and
each of its tensors lies between two guard areas. A call is right if it raises InvalidTensor, or if
it does what the naive kernel does.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import ostro
from ostro.core.errors import InvalidTensor
from ostro.core.ops.attention import AttentionMetadata
from ostro.core.ops.kv_write.scaled import Scaled, narrow
from ostro.core.ops.moe_route import RoutingRule
from ostro.core.ops.state_layout import StateLayout
from ostro.quant.planes.planes import Planes, pack_codes

GUARD = int(os.environ.get("GUARD_BYTES", 1 << 14))
"""0 under AddressSanitizer, which has guard areas of its own; see test_sanitizers.py."""
FILL = 0xFF  # NaN as a float, -1 as an integer
EMPTY = {"aten::empty.memory_format", "aten::new_empty", "aten::zeros"}

Tensors = dict[str, Tensor]


@dataclass
class Guarded:
    """Copies tensors to the middle of memory that nothing may touch."""

    def __post_init__(self) -> None:
        self.guards: list[Tensor] = []

    def copy(self, tensor: Tensor) -> Tensor:
        if not tensor.is_cpu:
            return tensor
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        extent = 1 + sum((n - 1) * stride for n, stride in steps) if tensor.numel() else 0
        size = extent * tensor.itemsize
        whole = torch.full((size + 2 * GUARD,), FILL, dtype=torch.uint8)
        inner = whole[GUARD : GUARD + size].view(tensor.dtype)
        inner.copy_(tensor.as_strided((extent,), (1,)))
        self.guards += [whole[:GUARD], whole[GUARD + size :]]
        return inner.as_strided(tensor.shape, tensor.stride(), inner.storage_offset())

    @property
    def intact(self) -> bool:
        return all(bool((guard == FILL).all()) for guard in self.guards)


class Outputs(TorchDispatchMode):
    """Guards what kernels write into: tensors made by torch.empty and torch.zeros."""

    def __init__(self, guarded: Guarded) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.guarded = guarded

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return self.guarded.copy(out) if func.name() in EMPTY else out


@dataclass
class Case:
    """A valid call: `call(kernel, **tensors)` with the functions at `native` and `naive`.

    Both are "module:function" behind "ostro."; `writes` names the tensors that they change.
    """

    native: str
    naive: str
    call: Callable[..., Any]
    tensors: Tensors
    writes: tuple[str, ...] = ()


def rand(*shape: int) -> Tensor:
    return torch.randn(shape)


def ints(*values: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def metadata(slots: Tensor, table: Tensor, starts: Tensor, lengths: Tensor) -> AttentionMetadata:
    """Of two sequences, one row each."""
    return AttentionMetadata(table, starts, lengths, slots, max_queries=1, max_length=20)


def attend(kernel: Any, q: Tensor, k: Tensor, v: Tensor, **batch: Tensor) -> Any:
    sinks = batch.pop("sinks")
    return kernel(q, k, v, metadata(**batch), 0.25, 0, 0.0, sinks)


def attend_scaled(kernel: Any, q: Tensor, k: Tensor, v: Tensor, **rest: Tensor) -> Any:
    scales = rest.pop("k_scales"), rest.pop("v_scales")
    return attend(kernel, q, Scaled(k, scales[0]), Scaled(v, scales[1]), **rest)


def write_scaled(kernel: Any, k: Tensor, v: Tensor, slots: Tensor, **cache: Tensor) -> Any:
    k_cache = Scaled(cache["k_cache"], cache["k_scales"])
    return kernel(k, v, k_cache, Scaled(cache["v_cache"], cache["v_scales"]), slots)


def convolve(kernel: Any, *, starts: Tensor, before: Tensor, saved: Tensor, **x: Tensor) -> Any:
    return kernel(*x.values(), StateLayout(starts, before, saved), "silu")


def scan(kernel: Any, *, starts: Tensor, before: Tensor, saved: Tensor, **x: Tensor) -> Any:
    state = x.pop("state")
    return kernel(*x.values(), (0.0, 2.5), state, StateLayout(starts, before, saved))


def delta(kernel: Any, *, starts: Tensor, before: Tensor, saved: Tensor, **x: Tensor) -> Any:
    return kernel(*x.values(), StateLayout(starts, before, saved))


def norm_rope_write(kernel: Any, slots: Tensor, **x: Tensor) -> Any:
    pages = SimpleNamespace(
        k=x.pop("k_cache"), v=x.pop("v_cache"), batch=SimpleNamespace(slots=slots)
    )
    positions, table = x.pop("positions"), x.pop("table")
    return kernel(*x.values(), 1e-6, positions, table, pages)


def weights(*shape: int) -> Planes:
    codes = torch.randint(16, shape, dtype=torch.uint8)
    return Planes(codes=pack_codes(codes, 4), scale=torch.rand(*shape[:-1], shape[-1] // 32))


def multiply(kernel: Any, x: Tensor, scale: Tensor, codes: Tensor) -> Any:
    return kernel(x, Planes(codes=(codes,), scale=scale))


def multiply_grouped(kernel: Any, x: Tensor, expert_of_row: Tensor) -> Any:
    return kernel(x, PLANES, expert_of_row)


torch.manual_seed(0)
PLANES = weights(3, 20, 64)
CODES = weights(20, 64)
BATCH = {  # one page of 16 tokens for the first sequence, two for the other, and one to spare
    "slots": ints(5, 33),
    "table": ints(0, 0, 0, 1, 2, 0, dtype=torch.int32).view(2, 3),
    "starts": ints(0, 1, 2, dtype=torch.int32),
    "lengths": ints(6, 18, dtype=torch.int32),
}
STATES = {"starts": ints(0, 1, 4), "before": ints(-1, 2), "saved": ints(0, -1, -1, 1)}
K, V = narrow(rand(4, 2, 16, 8), torch.int8), narrow(rand(4, 2, 16, 8), torch.int8)
PAGES = {"k_cache": rand(4, 2, 16, 8), "v_cache": rand(4, 2, 16, 8)}
EIGHT = {"k_cache": K[0], "k_scales": K[1], "v_cache": V[0], "v_scales": V[1]}
OPS = "core.ops"

CASES = {
    "act_mul": Case(
        f"{OPS}.act_mul.native:act_mul",
        f"{OPS}.act_mul.naive:act_mul",
        lambda kernel, x: kernel(x, "silu"),
        {"x": rand(5, 40)},
    ),
    "rms_norm": Case(
        f"{OPS}.rms_norm.native:rms_norm",
        f"{OPS}.rms_norm.naive:rms_norm",
        lambda kernel, x, weight, residual: kernel(x, weight, 1e-6, residual),
        {"x": rand(5, 40), "weight": rand(40), "residual": rand(5, 40)},
    ),
    "rms_norm of heads": Case(
        f"{OPS}.rms_norm.native:rms_norm",
        f"{OPS}.rms_norm.naive:rms_norm",
        lambda kernel, x, weight: kernel(x, weight, 1e-6),
        {"x": rand(5, 6, 24)[:, 1:4], "weight": rand(24)},
    ),
    "layer_norm": Case(
        f"{OPS}.layer_norm.native:layer_norm",
        f"{OPS}.layer_norm.naive:layer_norm",
        lambda kernel, x, weight, bias, residual: kernel(x, weight, bias, 1e-6, residual),
        {"x": rand(5, 40), "weight": rand(40), "bias": rand(40), "residual": rand(5, 40)},
    ),
    "layer_norm of heads": Case(
        f"{OPS}.layer_norm.native:layer_norm",
        f"{OPS}.layer_norm.naive:layer_norm",
        lambda kernel, x, weight: kernel(x, weight, None, 1e-6),
        {"x": rand(5, 6, 24)[:, 1:4], "weight": rand(24)},
    ),
    "rope": Case(
        f"{OPS}.rope.native:rope",
        f"{OPS}.rope.naive:rope",
        lambda kernel, **x: kernel(*x.values()),
        {
            "q": rand(3, 4, 24),
            "k": rand(3, 2, 24),
            "positions": ints(4, 1, 6)[None],
            "table": rand(9, 16),
        },
    ),
    "kv_write": Case(
        f"{OPS}.kv_write.native:kv_write",
        f"{OPS}.kv_write.naive:kv_write",
        lambda kernel, **x: kernel(*x.values()),
        {"k": rand(2, 2, 8), "v": rand(2, 2, 8), **PAGES, "slots": BATCH["slots"]},
        ("k_cache", "v_cache"),
    ),
    "kv_write, 8 bits": Case(
        f"{OPS}.kv_write.native:kv_write",
        f"{OPS}.kv_write.naive:kv_write",
        write_scaled,
        {"k": rand(2, 2, 8), "v": rand(2, 2, 8), **EIGHT, "slots": BATCH["slots"]},
        tuple(EIGHT),
    ),
    "attention": Case(
        f"{OPS}.attention.native:attention",
        f"{OPS}.attention.naive:attention",
        attend,
        {
            "q": rand(2, 4, 8),
            "k": rand(4, 2, 16, 8),
            "v": rand(4, 2, 16, 24),
            "sinks": rand(4),
            **BATCH,
        },
    ),
    "attention, latents": Case(
        f"{OPS}.attention.native:attention",
        f"{OPS}.attention.naive:attention",
        attend,
        {
            "q": rand(2, 4, 8),
            "k": (latents := rand(4, 1, 16, 8)),
            "v": latents[..., :6],
            "sinks": rand(4),
            **BATCH,
        },
    ),
    "attention, 8 bits": Case(
        f"{OPS}.attention.native:attention",
        f"{OPS}.attention.naive:attention",
        attend_scaled,
        {
            "q": rand(2, 4, 8),
            "k": K[0],
            "k_scales": K[1],
            "v": V[0],
            "v_scales": V[1],
            "sinks": rand(4),
            **BATCH,
        },
    ),
    "lora": Case(
        f"{OPS}.lora.native:lora",
        f"{OPS}.lora.naive:lora",
        lambda kernel, x, y, a, b, **rest: kernel(x, y, a, b, (24, 16), *rest.values()),
        {
            "x": rand(3, 36),
            "y": rand(3, 40),
            "a": rand(4, 2, 16, 36),
            "b": rand(4, 16, 40),
            "pages": ints(-1, -1, 0, 2, dtype=torch.int32).view(2, 2),
            "scales": rand(2, 2),
            "mixture": ints(1, 0, 1, dtype=torch.int32),
        },
        ("y",),
    ),
    "route": Case(
        f"{OPS}.moe_route.native:route",
        f"{OPS}.moe_route.naive:route",
        lambda kernel, logits, bias: kernel(logits, RoutingRule(3, sigmoid=True), bias),
        {"logits": rand(5, 20), "bias": rand(20)},
    ),
    "sort": Case(
        f"{OPS}.moe_route.native:sort",
        f"{OPS}.moe_route.naive:sort",
        lambda kernel, experts: kernel(experts, 6),
        {"experts": torch.stack([torch.randperm(6)[:3] for _ in range(5)])},
    ),
    "grouped": Case(
        f"{OPS}.grouped_matmul.native:grouped_deterministic",
        f"{OPS}.grouped_matmul.naive:grouped",
        lambda kernel, **x: kernel(*x.values()),
        {"x": rand(4, 40), "weight": rand(4, 20, 40), "expert_of_row": ints(0, 1, 1, 2)},
    ),
    "causal_conv": Case(
        f"{OPS}.causal_conv.native:causal_conv",
        f"{OPS}.causal_conv.naive:causal_conv",
        convolve,
        {
            "x": rand(4, 20),
            "weight": rand(20, 4),
            "bias": rand(20),
            "state": rand(4, 20, 3),
            **STATES,
        },
        ("state",),
    ),
    "scan": Case(
        f"{OPS}.scan.native:scan",
        f"{OPS}.scan.naive:scan",
        scan,
        {
            "x": rand(4, 4, 8),
            "dt": rand(4, 4),
            "a": -torch.rand(4),
            "b": rand(4, 2, 12),
            "c": rand(4, 2, 12),
            "d": rand(4),
            "dt_bias": rand(4),
            "state": rand(4, 4, 8, 12),
            **STATES,
        },
        ("state",),
    ),
    "delta_rule": Case(
        f"{OPS}.delta_rule.native:delta_rule",
        f"{OPS}.delta_rule.naive:delta_rule",
        delta,
        {
            "q": rand(4, 2, 12),
            "k": rand(4, 2, 12),
            "v": rand(4, 4, 20),
            "b": rand(4, 4),
            "a": rand(4, 4),
            "rate": -torch.rand(4),
            "dt_bias": rand(4),
            "state": rand(4, 4, 12, 20),
            **STATES,
        },
        ("state",),
    ),
    "norm_rope_write": Case(
        "architectures.qwen3.native:norm_rope_write",
        "architectures.qwen3.naive:norm_rope_write",
        norm_rope_write,
        {
            "q": rand(2, 4, 8),
            "k": rand(2, 2, 8),
            "v": rand(2, 2, 8),
            "q_weight": rand(8),
            "k_weight": rand(8),
            "positions": ints(4, 1)[None],
            "table": rand(9, 8),
            **PAGES,
            "slots": BATCH["slots"],
        },
        ("k_cache", "v_cache"),
    ),
    "mxfp4 grouped": Case(
        "quant.mxfp4.native:grouped_matmul_deterministic",
        "quant.mxfp4.naive:grouped_matmul",
        lambda kernel, **x: kernel(*x.values()),
        {
            "x": rand(4, 64),
            "q": torch.randint(256, (4, 20, 2, 16), dtype=torch.uint8),
            "e": torch.randint(120, 130, (4, 20, 2), dtype=torch.uint8),
            "expert_of_row": ints(0, 1, 1, 2),
        },
    ),
    "mxfp4 dequantize": Case(
        "quant.mxfp4.native:dequantize",
        "quant.mxfp4.naive:dequantize",
        lambda kernel, q, e: kernel(q, e, torch.float32),
        {
            "q": torch.randint(256, (20, 2, 16), dtype=torch.uint8),
            "e": torch.randint(120, 130, (20, 2), dtype=torch.uint8),
        },
    ),
    "quant_matmul": Case(
        "quant.planes.quant_matmul.native:matmul_exact",
        "quant.planes.quant_matmul.naive:matmul",
        multiply,
        {"x": rand(4, 64), "scale": CODES.scale, "codes": CODES.codes[0]},
    ),
    "quant_matmul, experts": Case(
        "quant.planes.quant_matmul.native:grouped_matmul_exact",
        "quant.planes.quant_matmul.naive:grouped_matmul",
        multiply_grouped,
        {"x": rand(4, 64), "expert_of_row": ints(0, 1, 1, 2)},
    ),
}


def wrong(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Variants of a tensor: other sizes, ranks, types, strides, another device."""
    for dim, size in enumerate(x.shape):
        yield (
            f"size {size - 1} of {size} in dimension {dim}",
            x.narrow(dim, 0, size - 1).contiguous(),
        )
        yield (
            f"size {size + 1} of {size} in dimension {dim}",
            torch.cat((x, x.narrow(dim, 0, 1)), dim),
        )
        yield f"no rows in dimension {dim}", x.narrow(dim, 0, 0).contiguous()
        yield f"dimension {dim} expanded", x.narrow(dim, 0, 1).expand_as(x)
        yield f"every second of dimension {dim}", spread(x, dim)
    yield "one dimension less", x.select(0, 0).contiguous()
    yield "one dimension more", x[None].contiguous()
    if x.ndim > 1:
        yield "transposed memory", x.mT.contiguous().mT
        yield "flat", x.flatten()
    for dtype in (
        torch.float64,
        torch.bfloat16,
        torch.float32,
        torch.int32,
        torch.int64,
        torch.uint8,
    ):
        if dtype != x.dtype:
            yield str(dtype), x.to(dtype)
    yield "meta", x.to("meta")


def spread(x: Tensor, dim: int) -> Tensor:
    """x in memory where only every second element of a dimension belongs to it."""
    wide = x.repeat_interleave(2, dim)
    return wide[(slice(None),) * dim + (slice(None, None, 2),)]


def function(path: str) -> Any:
    module, name = path.split(":")
    return getattr(import_module(f"ostro.{module}"), name)


def outcome(case: Case, kernel: Any, tensors: Tensors) -> list[Tensor] | Exception:
    """What a call returns and what it wrote, or what it raised."""
    try:
        out = case.call(kernel, **tensors)
    except Exception as error:
        return error
    returned = [] if out is None else [out] if isinstance(out, Tensor) else list(out)
    return [x.clone() for x in (*returned, *(tensors[name] for name in case.writes))]


def attempt(case: Case, tensors: Tensors) -> str:
    """What is wrong with a call; nothing where it is refused or right."""
    clones = {name: tensor.clone() for name, tensor in tensors.items()}
    expected = outcome(case, function(case.naive), clones)
    if isinstance(expected, IndexError) and "out of" in str(expected):
        return ""  # an index beyond a tensor: numbers are not examined
    guarded = Guarded()
    placed = {name: guarded.copy(tensor) for name, tensor in tensors.items()}
    with Outputs(guarded):
        got = outcome(case, function(case.native), placed)
    if not guarded.intact:
        return "wrote outside"
    if isinstance(got, InvalidTensor):
        return ""
    if isinstance(got, Exception) or isinstance(expected, Exception):
        return "" if type(got) is type(expected) else f"{got!r:.80}, expected {expected!r:.80}"
    for ours, theirs in zip(got, expected, strict=True):
        if ours.shape != theirs.shape:
            return f"gave {list(ours.shape)}, expected {list(theirs.shape)}"
        slack = 1e-3 if ours.itemsize > 2 else 0.05 * float(theirs.abs().nan_to_num().max())
        if not torch.allclose(ours.double(), theirs.double(), 1e-3, slack, equal_nan=True):
            return "gave other numbers than the naive kernel"
    return ""


def run(case: Case) -> Iterator[str]:
    """One line per fault."""
    if fault := attempt(case, case.tensors):
        yield f"as it should be: {fault}"
    for name, tensor in case.tensors.items():
        for kind, variant in wrong(tensor):
            if "expanded" in kind and name in case.writes:
                continue  # torch has no result for elements that share memory
            if fault := attempt(case, {**case.tensors, name: variant}):
                yield f"{name}, {kind}: {fault}"


def test_every_kernel_has_a_case() -> None:
    root = Path(ostro.__file__).parent
    wrappers = {
        str(path.relative_to(root).with_suffix("")).replace("/", ".")
        for folder in ("core", "architectures", "quant", "adapters", "plugins")
        for path in (root / folder).rglob("native.py")
    }
    assert wrappers == {case.native.partition(":")[0] for case in CASES.values()}


@pytest.fixture(scope="module")
def found() -> dict[str, tuple[int, list[str]]]:
    """By case, the exit status of the process that ran it, and the faults that it printed."""
    done = subprocess.run(
        [sys.executable, __file__],
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )
    return {
        name: (status, faults) for name, status, faults in map(json.loads, done.stdout.splitlines())
    }


@pytest.mark.parametrize("name", CASES)
def test_wrong_arguments_are_refused(name: str, found: dict[str, tuple[int, list[str]]]) -> None:
    """Or the kernel does what the naive one does: some sizes may differ."""
    status, faults = found[name]
    assert status == 0 and not faults, f"{status = }\n" + "\n".join(faults)


def main() -> None:
    """Run every case in a process of its own, which may crash."""
    if GUARD:  # AddressSanitizer reserves terabytes of addresses
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    torch.set_num_threads(1)
    import_module("torch._dynamo")  # imported by operations; here once for all processes
    for name, case in CASES.items():
        reader, writer = os.pipe()
        if not (child := os.fork()):
            with os.fdopen(writer, "w") as pipe:
                for fault in run(case):
                    print(fault, file=pipe, flush=True)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            faults = pipe.read().splitlines()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps([name, status, faults]), flush=True)


if __name__ == "__main__":
    main()
