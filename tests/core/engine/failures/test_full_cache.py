"""Pooling requests and first uses of adapters while running requests hold the cache: they wait."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny.adapters import adapter, save
from tiny.failing import LONG, MEAN, ask

from ostro.core.engine.engine import Engine
from ostro.core.engine.models.model_engines import ModelEngines
from ostro.core.engine.models.multi_model import MultiModelEngine
from ostro.core.engine.pooling import PoolingEngine
from ostro.core.errors import OstroError, Overloaded, RequestError
from ostro.core.messages.commands import Failed
from ostro.core.messages.outputs import Output
from ostro.core.messages.requests import AdapterRef, PoolingRequest
from ostro.plugins.conformance.parity import Subject

BLOCKS, BLOCK = 6, 16
PROMPT = [7 * i % 100 + 1 for i in range(120)]


@pytest.fixture
def multi(llama: Subject) -> Iterator[MultiModelEngine]:
    """A model whose cache has few blocks."""
    engine = llama.engine(blocks=BLOCKS)
    reader = PoolingEngine(
        engine.runner,
        MEAN,
        vocab=engine.vocab,
        context=200,
        max_rows=512,
        registry=engine.registry,
    )
    made = MultiModelEngine({"m": ModelEngines(engine, reader, registry=engine.registry)})
    yield made
    assert all(group.pool.used == 0 for group in engine.blocks.all)
    made.close()


def tokens_of(multi: MultiModelEngine) -> Engine:
    tokens = multi.first.tokens
    assert tokens is not None
    return tokens


def fill(multi: MultiModelEngine) -> None:
    """Let a request for text hold all blocks but one."""
    multi.submit(ask("text", PROMPT[: (BLOCKS - 2) * BLOCK + 1], BLOCK - 4))
    multi.step()
    assert tokens_of(multi).stats().blocks_used == BLOCKS - 1


def pooling(id: str, *inputs: list[int], **fields: object) -> PoolingRequest:
    return PoolingRequest(id=id, inputs=list(inputs), model="m", **fields)  # type: ignore[arg-type]


def finish(multi: MultiModelEngine) -> list[Output]:
    """The last outputs in their order."""
    outputs = list[Output]()
    while multi.busy:
        outputs += multi.step()
    assert not [event for event in multi.events() if isinstance(event, Failed)]
    return [output for output in outputs if output.finish]


def test_a_batch_waits_for_running_requests(multi: MultiModelEngine) -> None:
    fill(multi)
    multi.submit(pooling("vectors", PROMPT[: 2 * BLOCK]))
    ends = finish(multi)
    assert [(end.id, end.finish) for end in ends] == [("text", "length"), ("vectors", "stop")]


def test_no_request_for_text_starts_before_a_batch_that_waits(multi: MultiModelEngine) -> None:
    fill(multi)
    multi.submit(pooling("vectors", PROMPT[: 2 * BLOCK]))
    multi.step()
    for id in ("second", "third"):
        multi.submit(ask(id, PROMPT[2 : 2 + (BLOCKS - 2) * BLOCK + 1], 4))
    ends = [end.id for end in finish(multi)]
    assert ends == ["text", "vectors", "second", "third"]


def test_text_goes_on_after_the_batch_that_waited_is_aborted(multi: MultiModelEngine) -> None:
    fill(multi)
    multi.submit(pooling("vectors", PROMPT[: 2 * BLOCK]))
    multi.submit(ask("short", PROMPT[:3], 4))
    multi.step()
    assert [output.finish for output in multi.abort("vectors")] == ["abort"]
    assert [end.id for end in finish(multi)] == ["short", "text"]


def test_a_batch_that_is_too_large_in_sum_is_split(multi: MultiModelEngine) -> None:
    half = BLOCK * BLOCKS // 2
    inputs = [PROMPT[i : half + i] for i in range(5)]
    multi.submit(pooling("vectors", *inputs))
    [end] = finish(multi)
    assert end.finish == "stop" and end.total == 5  # type: ignore[union-attr]


def test_an_input_that_never_fits_is_refused(multi: MultiModelEngine) -> None:
    with pytest.raises(RequestError, match=r"input\[1\] has 97 tokens.*the cache") as refused:
        multi.submit(pooling("vectors", [5], PROMPT[: BLOCK * BLOCKS + 1]))
    assert refused.value.param == "input" and not multi.busy


def test_calls_beside_running_requests_are_overloaded(multi: MultiModelEngine) -> None:
    fill(multi)
    with pytest.raises(Overloaded, match="no room in the cache"):
        tokens_of(multi).runner.hidden([PROMPT[: 2 * BLOCK]])
    assert tokens_of(multi).stats().blocks_used == BLOCKS - 1
    finish(multi)


def test_the_first_use_of_an_adapter_waits(
    llama: Subject, multi: MultiModelEngine, tmp_path: Path
) -> None:
    registry = tokens_of(multi).registry
    assert registry is not None
    registry.register("a", str(save(adapter(llama, 1), tmp_path / "a")))
    multi.submit(ask("text", PROMPT[: (BLOCKS - 1) * BLOCK + 1], BLOCK - 4))
    multi.step()
    assert tokens_of(multi).stats().blocks_used == BLOCKS
    multi.submit(
        pooling("vectors", PROMPT[:BLOCK], adapters=(AdapterRef(name="a"),)),
    )
    ends = finish(multi)
    assert [(end.id, end.finish) for end in ends] == [("text", "length"), ("vectors", "stop")]
    assert registry.find("a").generation is not None
    assert next(iter(registry.store.adapters.values())).effect is not None, "it was probed"


def test_the_first_use_of_an_adapter_that_waits_can_be_aborted(
    llama: Subject, multi: MultiModelEngine, tmp_path: Path
) -> None:
    registry = tokens_of(multi).registry
    assert registry is not None
    registry.register("a", str(save(adapter(llama, 1), tmp_path / "a")))
    multi.submit(ask("text", PROMPT[: (BLOCKS - 1) * BLOCK + 1], LONG))
    multi.step()
    multi.submit(pooling("vectors", PROMPT[:BLOCK], adapters=(AdapterRef(name="a"),)))
    multi.abort("vectors")
    multi.abort("text")
    assert not finish(multi)


def test_an_adapter_in_memory_is_overloaded(llama: Subject, multi: MultiModelEngine) -> None:
    registry = tokens_of(multi).registry
    assert registry is not None
    multi.submit(ask("text", PROMPT[: (BLOCKS - 1) * BLOCK + 1], BLOCK - 4))
    multi.step()
    with pytest.raises(OstroError) as refused:
        registry.add("a", adapter(llama, 1))
    assert refused.value.status == 503
    finish(multi)
