"""Times of kernels on a GPU beside what the memory and the tensor cores allow.

    PYTHONPATH=src:tests python3 -m gpu.measure SECTION... [--seconds N] [--json FILE]

Each row has the median time of a call, captured in a CUDA graph and replayed over rotating inputs
that exceed the cache, the rate in TB/s and TFLOP/s, and the share of the roof: the larger of bytes
over the measured bandwidth and operations over the measured rate of bf16 products, over the time.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from gpu.batches import Heads, paged, randn
from gpu.quantized import random_planes

from ostro.entrypoints.bench.kernels import graph_seconds

CACHE = 200 << 20
"""Bytes of rotating inputs: several times the level 2 cache."""

BF16 = torch.bfloat16


@dataclass(frozen=True)
class Case:
    """A call with its bytes and operations. `inputs` are argument tuples to rotate among."""

    name: str
    call: Callable[..., Any]
    inputs: Sequence[tuple[Any, ...]]
    nbytes: int = 0
    flops: int = 0


@dataclass(frozen=True)
class Row:
    """microseconds; TB/s; TFLOP/s; share of the roof, or 0 where the roof is unknown."""

    name: str
    us: float
    bandwidth: float
    rate: float
    share: float


@dataclass
class Roof:
    """Bytes and operations per second that plain torch reaches."""

    bandwidth: float = 0.0
    rate: float = 0.0


def copies(make: Callable[[], tuple[Any, ...]], nbytes: int) -> list[tuple[Any, ...]]:
    """So many sets of inputs that they exceed the cache, at most 16."""
    return [make() for _ in range(max(2, min(16, CACHE // max(nbytes, 1) + 1)))]


def time_of(case: Case) -> float:
    """The median seconds of a call, over all inputs in turn."""
    seconds = graph_seconds(lambda: [case.call(*inputs) for inputs in case.inputs])
    return seconds / len(case.inputs)


def roof_cases() -> Iterator[Case]:
    a = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_()
    b = torch.empty_like(a)
    yield Case("copy of 1 GiB", b.copy_, [(a,)], nbytes=2 << 30)
    x, w = randn(8192, 8192, dtype=BF16), randn(8192, 8192, dtype=BF16)
    yield Case("bf16 product 8192^3", torch.mm, [(x, w)], flops=2 * 8192**3)
    node = torch.zeros(1, device="cuda")
    yield Case("empty kernel in a graph", node.add_, [(1,)] * 100)


SHAPES = {"qkv": (6144, 4096), "up": (28672, 4096), "down": (4096, 14336)}
PRODUCT_ROWS = (1, 4, 8, 16, 32, 64, 128, 256, 512)


def product_cases() -> Iterator[Case]:
    from ostro.quant.planes.quant_matmul import triton as kernels

    for shape, (n, k) in SHAPES.items():
        for rows in PRODUCT_ROWS:
            flops = 2 * rows * n * k

            def dense(n: int = n, k: int = k, rows: int = rows) -> tuple[Any, ...]:
                return randn(rows, k, dtype=BF16), randn(k, n, dtype=BF16).div_(50)

            size = 2 * (n * k + rows * (n + k))
            yield Case(f"bf16 {shape} {rows}", torch.mm, copies(dense, size), size, flops)
            for format in ("Q4_K", "Q6_K", "Q8_0", "fp8"):

                def quantized(
                    n: int = n, k: int = k, rows: int = rows, format: str = format
                ) -> tuple[Any, ...]:
                    return randn(rows, k, dtype=BF16), random_planes(format, n, k)

                _, planes = quantized()
                size = planes.nbytes + 2 * rows * (n + k)
                inputs = copies(quantized, size)
                yield Case(f"{format} {shape} {rows}", kernels.matmul, inputs, size, flops)


def attention_cases() -> Iterator[Case]:
    from ostro.core.ops.attention import triton as kernels

    heads = Heads(32, 8, 128, 128)
    for count, length in ((1, 1024), (1, 32768), (8, 1024), (32, 1024), (32, 8192), (128, 1024)):
        size = 2 * count * length * heads.kv * (heads.d + heads.dv)
        flops = 2 * count * length * heads.q * (heads.d + heads.dv)
        make = partial(paged, [1] * count, [length] * count, heads, BF16)
        name = f"decode {count} x {length}"
        yield Case(name, kernels.attention, copies(make, size), size, flops)
    for count, length in ((1, 512), (8, 512), (1, 4096)):
        flops = count * length * length * heads.q * (heads.d + heads.dv)
        case = paged([length] * count, [length] * count, heads, BF16)
        yield Case(f"prefill {count} x {length}", kernels.attention, [tuple(case)], flops=flops)


def latent_cases() -> Iterator[Case]:
    from ostro.core.ops.latent_attention import triton as kernels

    for h in (16, 128):
        for count, length in ((1, 1024), (32, 1024), (32, 8192)):
            size, flops = 2 * count * length * 576, 2 * count * length * h * (576 + 512)
            make = partial(paged, [1] * count, [length] * count, Heads(h, 1, 576, 512), BF16)
            inputs = copies(make, size)
            name = f"latent {h} heads {count} x {length}"
            yield Case(name, kernels.latent_attention, inputs, size, flops)


def moe_cases() -> Iterator[Case]:
    """The experts of 30B-A3B: 128, of which a row has 8."""
    from ostro.core.ops.grouped_matmul import triton as dense
    from ostro.quant.planes.quant_matmul import triton as kernels

    n, k = 1536, 2048
    weight, planes = randn(128, n, k, dtype=BF16).div_(50), random_planes("Q4_K", n, k, (128,))
    for rows in (1, 8, 32, 128, 512):
        experts = torch.rand(rows, 128, device="cuda").topk(8).indices.flatten().sort().values
        used, flops = len(experts.unique()), 2 * len(experts) * n * k
        x = randn(len(experts), k, dtype=BF16)
        for name, call, w, whole in (
            ("bf16", dense.grouped, weight, weight.nbytes),
            ("Q4_K", kernels.grouped_matmul, planes, planes.nbytes),
        ):
            size = whole * used // 128
            yield Case(f"moe {name} {rows} rows", call, [(x, w, experts)], size, flops)


def lora_cases() -> Iterator[Case]:
    from ostro.core.ops.lora import triton as kernels

    k, widths, count = 4096, (4096, 1024, 1024), 32
    a, b = randn(count, 3, 16, k, dtype=BF16), randn(count, 16, sum(widths), dtype=BF16)
    pages = torch.arange(-1, count, device="cuda").int()[:, None]
    scales = torch.ones_like(pages, dtype=torch.float32)
    for rows in (1, 8, 32, 128):
        mixture = (torch.arange(rows, device="cuda") % count + 1).int()
        x, y = randn(rows, k, dtype=BF16), randn(rows, sum(widths), dtype=BF16)
        used = min(rows, count)
        size, flops = used * 2 * (a[0].numel() + b[0].numel()), 32 * rows * (3 * k + sum(widths))
        inputs = [(x, y, a, b, widths, pages, scales, mixture)]
        yield Case(f"lora {rows} rows, {used} adapters", kernels.lora, inputs, size, flops)
        idle = [(x, y, a, b, widths, pages, scales, torch.zeros_like(mixture))]
        yield Case(f"lora {rows} rows, idle", kernels.lora, idle)


def sample_cases() -> Iterator[Case]:
    from ostro.core.ops.sample import Draw
    from ostro.core.ops.sample import triton as kernels

    rules: dict[str, dict[str, float]] = {
        "temperature": {},
        "top_k 20, top_p 0.95": {"top_k": 20, "top_p": 0.95},
    }
    neutral = {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical": 1.0}
    for rows in (1, 8, 32, 128):
        logits = randn(rows, 128_256)
        for name, given in rules.items():
            values = {
                key: torch.full((rows,), value, device="cuda")
                for key, value in (neutral | given).items()
            }
            values["top_k"] = values["top_k"].int()
            numbers = torch.arange(rows, device="cuda")
            draw = Draw(**values, seed=numbers, position=numbers, plain=not given)
            inputs = [(logits, draw)]
            yield Case(f"sample {rows} rows, {name}", kernels.sample, inputs, logits.nbytes)


SECTIONS: dict[str, Callable[[], Iterator[Case]]] = {
    "roof": roof_cases,
    "products": product_cases,
    "attention": attention_cases,
    "latent": latent_cases,
    "moe": moe_cases,
    "lora": lora_cases,
    "sample": sample_cases,
}


def row_of(case: Case, roof: Roof) -> Row:
    seconds = time_of(case)
    bound = max(
        case.nbytes / roof.bandwidth if roof.bandwidth else 0.0,
        case.flops / roof.rate if roof.rate else 0.0,
    )
    return Row(
        case.name, 1e6 * seconds, case.nbytes / seconds / 1e12, case.flops / seconds / 1e12,
        bound / seconds,
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure kernels on a GPU.")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--seconds", type=float, default=60, help="time for each section")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    args = parser.parse_args()
    if unknown := [name for name in args.sections if name not in SECTIONS]:
        parser.error(f"unknown sections {', '.join(unknown)}; expected {', '.join(SECTIONS)}")
    if not torch.cuda.is_available():
        print("no CUDA device")
        return 0
    roof, rows = Roof(), list[Row]()
    for section in dict.fromkeys(["roof", *(args.sections or SECTIONS)]):
        end = perf_counter() + args.seconds
        for case in SECTIONS[section]():
            if perf_counter() > end:
                print(f"{section}: {args.seconds:.0f} s are over, the rest is left out")
                break
            try:
                row = row_of(case, roof)
            except Exception as error:
                print(f"{case.name}: {type(error).__name__}: {error}"[:400])
                continue
            if section == "roof":
                roof.bandwidth, roof.rate = (
                    max(roof.bandwidth, 1e12 * row.bandwidth),
                    max(roof.rate, 1e12 * row.rate),
                )
            rows.append(row)
            print(
                f"| {row.name:36} {row.us:10.1f} us {row.bandwidth:7.3f} TB/s "
                f"{row.rate:7.1f} TFLOP/s {100 * row.share:5.0f} %",
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
