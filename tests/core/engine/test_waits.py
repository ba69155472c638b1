"""The loop waits for the device only when it reads a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from ostro.core.engine.engine import Engine
from ostro.core.engine.runner import ModelRunner
from ostro.core.host_reads import NotCapturable, RefuseHostReads, RefuseWaits
from ostro.core.messages.requests import Dry, Sampling, TokenRequest
from ostro.core.ops import Op
from ostro.plugins.conformance.parity import Subject


class RefuseAssignments(TorchFunctionMode):
    """Refuses assignments of numbers: on a GPU they are copies from host memory, which wait."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__setitem__ and not isinstance(args[2], Tensor):
            raise NotCapturable(f"it assigns {args[2]}")
        return func(*args, **(kwargs or {}))


RULES = {
    "plain": Sampling(temperature=0, max_tokens=4),
    "truncation": Sampling(temperature=1, top_k=5, top_p=0.9, min_p=0.01, max_tokens=4),
    "penalties": Sampling(
        temperature=0, repetition_penalty=1.2, presence_penalty=0.5, max_tokens=4
    ),
    "biases": Sampling(
        temperature=0, logit_bias={5: -3.0}, min_tokens=2, stop_ids=[3], max_tokens=4
    ),
    "dry": Sampling(temperature=0, dry=Dry(multiplier=1.0), max_tokens=4),
    "logprobs": Sampling(temperature=0, logprobs=2, prompt_logprobs=3, max_tokens=4),
}


@pytest.fixture
def engine(llama: Subject, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine whose runner refuses to wait. The kernels of the CPU may read numbers."""
    call, parts = Op.__call__, {name: getattr(ModelRunner, name) for name in ("forward", "sample")}

    def call_freely(self: Op, *args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            return call(self, *args, **kwargs)

    def without_waits(part: Any) -> Any:
        def run(self: ModelRunner, argument: Any) -> Any:
            with RefuseHostReads(), RefuseAssignments(), RefuseWaits():
                return part(self, argument)

        return run

    made = llama.engine(replay=True, rows=16)
    monkeypatch.setattr(Op, "__call__", call_freely)
    for name, part in parts.items():
        monkeypatch.setattr(ModelRunner, name, without_waits(part))
    yield made
    made.close()


def test_no_kind_of_request_waits_for_the_device(engine: Engine, llama: Subject) -> None:
    for name, rules in RULES.items():
        engine.submit(TokenRequest(id=name, tokens=llama.prompt[:20], sampling=rules))
    outputs = engine.drain()
    assert {output.id for output in outputs if output.finish} == {*RULES}


def test_a_wait_is_found() -> None:
    for wait in (lambda x: x.sum().item(), lambda x: torch.bincount(x.argmax(-1)), torch.nonzero):
        with pytest.raises(NotCapturable), RefuseHostReads(), RefuseWaits():
            wait(torch.ones(3, 4))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_no_kind_of_request_waits_on_a_gpu(llama: Subject) -> None:
    made = llama.engine(device="cuda", rows=16)
    made.runner.capture()
    for mode in ("default", "error"):  # the first pass compiles kernels and makes tables
        for name, rules in RULES.items():
            made.submit(TokenRequest(id=name, tokens=llama.prompt[:20], sampling=rules))
        torch.cuda.set_sync_debug_mode(mode)
        try:
            made.drain()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    made.close()
