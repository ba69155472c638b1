"""Requests that fail, and checks of what they leave behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ostro.core.engine.engine import Engine
from ostro.core.load.pooling import Pooling
from ostro.core.messages.outputs import TokenOutput
from ostro.core.messages.requests import Sampling, TokenRequest

Build = Callable[..., Engine]


MEAN = Pooling("mean")


FAULTY = Path(__file__).with_name("faulty.py")


LONG = 60


def ask(id: str, tokens: list[int], count: int = LONG, **rules: Any) -> TokenRequest:
    sampling = Sampling(max_tokens=count, ignore_eos=True, **{"temperature": 0, **rules})
    return TokenRequest(id=id, tokens=tokens, sampling=sampling)


def processed(id: str, tokens: list[int], fault: str, count: int = LONG) -> TokenRequest:
    return ask(id, tokens, count, processors={"faulty": fault})


def run(engine: Engine, *requests: TokenRequest) -> dict[str, list[TokenOutput]]:
    for request in requests:
        engine.submit(request)
    return outputs_of(engine)


def outputs_of(engine: Engine) -> dict[str, list[TokenOutput]]:
    found: dict[str, list[TokenOutput]] = {}
    while engine.busy:
        for output in engine.step():
            found.setdefault(output.id, []).append(output)
    for outputs in found.values():
        ends = {output.index for output in outputs if output.finish}
        assert len([o for o in outputs if o.finish]) == len(ends), "each choice ends once"
    return found


def tokens_of(outputs: list[TokenOutput]) -> list[int]:
    return [token for output in outputs for token in output.tokens]


def error_of(outputs: list[TokenOutput]) -> str:
    assert outputs[-1].finish == "error" and outputs[-1].error is not None
    return outputs[-1].error


def idle(engine: Engine) -> None:
    """Assert that no request has left anything behind."""
    scheduler = engine.scheduler
    assert not engine.busy and not engine.live
    assert not scheduler.running and not scheduler.waiting
    assert engine.stats().blocks_used == 0
    assert sorted(scheduler.rows) == list(range(scheduler.max_seqs))
    if engine.registry is not None and engine.runner.adapter_pool is not None:
        assert not engine.registry.store.use_counts and not engine.runner.adapter_pool.rows
        assert not any(each.users for each in engine.runner.adapter_pool.adapters.values())


class Fault:
    """Replaces a method: call number `at` (from 0) raises, all others work as before."""

    def __init__(self, owner: Any, name: str, error: BaseException, *at: int) -> None:
        self.real, self.error, self.at, self.calls = getattr(owner, name), error, at or (0,), 0
        setattr(owner, name, self)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.calls += 1
        if self.calls - 1 in self.at:
            raise self.error
        return self.real(*arguments, **named)
