"""CPU graphs: replays equal eager calls, and calls that read numbers are refused."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread

import pytest
import torch
from torch import Tensor

from ostro.core.host_reads import NotCapturable
from ostro.core.native import cpu_graph
from ostro.core.native.cpu_graph import record
from ostro.core.ops.rms_norm.native import rms_norm
from ostro.quant.planes.planes import Planes, pack_codes
from ostro.quant.planes.quant_matmul import native

WEIGHT = native.NativeWeight(
    Planes(
        codes=pack_codes(torch.arange(512).view(16, 32).to(torch.uint8) % 16, 4),
        scale=torch.ones(16, 1),
    )
)

CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "a kernel": lambda x: rms_norm(x, torch.ones(32), 1e-6)[0],
    "a product": lambda x: native.matmul(x, WEIGHT),
    "an operation": lambda x: x * 2 + 1,
    "a result with other strides": lambda x: (x.t() * 2).t() + x.t().contiguous().t(),
    "another dtype": lambda x: x.to(torch.bfloat16).float(),
    "several outputs": lambda x: torch.cat(x.split((8, 24), 1)[::-1], 1).sort(-1)[0],
    "views": lambda x: x.view(-1, 4, 8).transpose(0, 1)[1:, :, 2:].flatten(1) - x[0, 0],
    "in place": lambda x: torch.zeros(3, 32).add_(x).index_fill_(1, torch.tensor([4]), 9.0),
    "memory": lambda x: torch.empty_like(x).copy_(x).t().contiguous(),
    "a view alone": lambda x: x[1:],
    "a number that stays": lambda x: x * torch.full((32,), 3.0),
    "places": lambda x: x[:, x[0].argsort()[:5]],
    "both": lambda x: native.matmul(rms_norm(x.relu(), torch.ones(32), 1e-6)[0], WEIGHT).exp(),
}


@pytest.mark.parametrize("name", CALLS)
@torch.inference_mode()
def test_a_launch_repeats_the_call(name: str) -> None:
    call, x = CALLS[name], torch.randn(3, 32)
    launch = record(lambda: call(x))
    for _ in range(3):
        x.copy_(torch.randn(3, 32))
        again = launch()
        assert again.equal(call(x)) and again is launch()
    before = again.clone()
    x.copy_(torch.randn(3, 32))
    if name != "a view alone":
        assert again.equal(before), "a capture changes nothing before the replay"
    torch.empty(1 << 16).fill_(torch.nan)  # the allocator must not reuse retained memory
    assert launch().equal(call(x))


@torch.inference_mode()
def test_operations_write_to_the_memory_of_the_capture() -> None:
    x = torch.randn(3, 32)
    graph = record(lambda: torch.cat((x * 2, x + 1)).tanh())
    assert cpu_graph.run_and_copy not in [step for step, _ in graph.steps]


READING: dict[str, Callable[[Tensor], object]] = {
    "tolist": lambda x: x.tolist(),
    "item": lambda x: x[0, 0].item(),
    "numpy": lambda x: x.numpy(),
    "float": lambda x: float(x[0, 0]),
    "a condition": lambda x: x if x[0, 0] > 0 else -x,
    "a slice": lambda x: x[: x.argmax()],
    "equal": lambda x: torch.equal(x, x + 1),
    "nonzero": lambda x: x.nonzero(),
    "unique": lambda x: x.unique(),
    "a mask": lambda x: x[x > 0],
}


@pytest.mark.parametrize("name", READING)
@torch.inference_mode()
def test_calls_that_read_numbers_are_refused(name: str) -> None:
    x = torch.rand(3, 32) + 0.5
    with pytest.raises(NotCapturable, match="numbers"):
        record(lambda: READING[name](x))
    torch.ones(3).add_(1)
    assert record(lambda: x + 1)().equal(x + 1), "a refused call leaves no state"


@torch.inference_mode()
def test_calls_that_need_too_much_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_graph, "MAX_BYTES", 1 << 20)
    x = torch.rand(3, 1 << 15)
    assert record(lambda: (x + 1) * 2)().equal((x + 1) * 2)
    large = torch.rand(3, 1 << 18)
    assert record(lambda: large.t()[:5] + 1)().equal(large.t()[:5] + 1), "views take none"
    with pytest.raises(NotCapturable, match="memory"):
        record(lambda: sum((x + i for i in range(9)), x))


@torch.inference_mode()
def test_other_threads_are_not_recorded() -> None:
    x, others = torch.rand(3, 32), torch.rand(3, 32)
    far = Thread(target=lambda: rms_norm(others, torch.ones(32), 1e-6))

    def call() -> Tensor:
        far.start()
        far.join()
        return rms_norm(x, torch.ones(32), 1e-6)[0]

    launch = record(call)
    assert len(launch.steps) == 2, "the ones, and the norm"
