"""Adapters that cannot be loaded to the device end the requests that use them."""

from __future__ import annotations

import pytest
from tiny.adapters import adapter
from tiny.failing import (
    Build,
    Fault,
    ask,
    error_of,
    idle,
    outputs_of,
    tokens_of,
)

from ostro.core.messages.requests import AdapterRef, TokenRequest
from ostro.plugins.conformance.parity import Subject, greedy


@pytest.mark.parametrize("where", ["fill", "write"])
def test_an_adapter_that_cannot_be_brought_to_the_device_ends_its_request_alone(
    llama: Subject, engine_of: Build, where: str
) -> None:
    engine, prompt = engine_of(llama, adapter_slots=2), llama.prompt[:20]
    registry, adapter_pool = engine.registry, engine.runner.adapter_pool
    assert registry is not None and adapter_pool is not None
    registry.add("a", adapter(llama, 1))
    mixture = lambda: registry.mixture([AdapterRef(name="a")])  # noqa: E731
    base, changed = greedy(engine, [prompt] * 2, 8, [registry.mixture([]), mixture()])
    adapter_pool.evict_unused(next(iter(adapter_pool.adapters)))
    free = sorted(adapter_pool.free_pages)
    delta = list(adapter_pool.deltas.values())[3]
    Fault(delta if where == "delta" else adapter_pool.mixtures, "write", MemoryError("no room"))
    engine.submit(ask("bad", prompt, 8), mixture())
    engine.submit(ask("good", prompt, 8))
    found = outputs_of(engine)
    assert "loading adapters to the device" in error_of(found["bad"])
    assert tokens_of(found["good"]) == base
    idle(engine)
    used = [page for each in adapter_pool.adapters.values() for page in each.pages]
    assert sorted([*adapter_pool.free_pages, *used]) == free
    engine.submit(ask("again", prompt, 8), mixture())
    assert tokens_of(outputs_of(engine)["again"]) == changed
    engine.close()


def test_an_adapter_that_raises_leaves_the_queue(llama: Subject, engine_of: Build) -> None:
    engine, prompt = engine_of(llama, max_seqs=1), llama.prompt[:20]
    registry, adapter_pool = engine.registry, engine.runner.adapter_pool
    assert registry is not None and adapter_pool is not None
    registry.add("a", adapter(llama, 1))
    engine.submit(ask("running", prompt, 8))
    engine.step()
    Fault(adapter_pool, "acquire", MemoryError())
    bad = TokenRequest(id="bad", tokens=prompt, priority=-1)
    engine.submit(bad, registry.mixture([AdapterRef(name="a")]))
    found = outputs_of(engine)
    assert found["running"][-1].finish == "length"
    assert found["bad"][-1].finish == "error"
    idle(engine)
    engine.close()
