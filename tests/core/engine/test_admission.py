"""Admission: which requests an engine accepts and refuses. Without a model."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiny.loop import BLOCK, CPU, cross, image, lora, pages, view, xlora

from ostro.core.adapters.adapter import EMPTY, Mixture
from ostro.core.engine.blocks import BlockManager, CacheGroup
from ostro.core.engine.engine import Engine, rekey_media
from ostro.core.engine.processors import Processors
from ostro.core.engine.scheduler import Scheduler
from ostro.core.errors import ContextLengthExceeded, RequestError
from ostro.core.messages.arrays import Array
from ostro.core.messages.requests import Sampling, TokenRequest

VOCAB = 100


def engine(*groups: CacheGroup, context: int = 40) -> Engine:
    blocks = BlockManager(groups or (pages(64),), BLOCK)
    sampler = SimpleNamespace(processors=Processors((), 4, VOCAB, CPU))
    scheduler = Scheduler(blocks, max_rows=16, max_seqs=4)
    runner: Any = SimpleNamespace(sampler=sampler)
    return Engine(runner, scheduler, vocab=VOCAB, context=context, eos_ids=[])


def submit(
    engine: Engine,
    tokens: Sequence[int],
    *,
    mixture: Mixture = EMPTY,
    items: Sequence[Any] = (),
    positions: Sequence[int] | None = None,
    **rules: Any,
) -> list[int]:
    """Submit a request; return the limit of each choice."""
    given = None if positions is None else Array.of(np.array([positions], np.int32))
    request = TokenRequest(
        id="a",
        tokens=list(tokens),
        sampling=Sampling(**rules),
        items=list(items),
        positions=given,
    )
    engine.submit(request, mixture)
    return [sequence.limit for sequence in engine.scheduler.waiting]


def test_an_output_without_a_limit_may_fill_the_context() -> None:
    assert submit(engine(context=40), range(30)) == [10]
    assert submit(engine(context=40), range(30), max_tokens=7, n=2) == [7, 7]
    assert submit(engine(context=40), range(30), max_tokens=70) == [10]


def test_positions_beyond_the_tokens_shorten_the_output() -> None:
    assert submit(engine(context=40), range(3), positions=[0, 5, 33]) == [6]


@pytest.mark.parametrize(
    ("tokens", "more", "message"),
    [
        ([], {}, "the prompt is empty"),
        ([1, VOCAB], {}, "token id 100 is not within 0..99"),
        ([-1], {}, "token id -1"),
        ([1], {"max_tokens": 0}, "max_tokens=0 needs prompt_logprobs"),
        ([1], {"top_k": -1}, "top_k=-1"),
        ([1], {"processors": {"nope": 1}}, "no logits processor 'nope'"),
        (range(8), {"items": [image("a", 5, 4)]}, "rows of image are not within the prompt"),
        (range(8), {"items": [image("a", 5, 0)]}, "rows of image are not within the prompt"),
        (range(8), {"items": [view("a", 9)]}, "rows of image are not within the prompt"),
    ],
)
def test_a_request_that_can_never_run_is_refused_without_effect(
    tokens: Sequence[int], more: dict[str, Any], message: str
) -> None:
    made = engine(pages(64), cross(4))
    with pytest.raises(RequestError, match=message):
        submit(made, tokens, **more)
    assert not made.busy and not made.scheduler.waiting


def test_a_prompt_that_fills_the_context_is_rejected_unless_max_tokens_is_0() -> None:
    with pytest.raises(ContextLengthExceeded, match="in 40 tokens, and at least 1 must be gener"):
        submit(engine(context=40), range(40))
    assert submit(engine(context=40), range(40), max_tokens=0, prompt_logprobs=1) == [0]
    with pytest.raises(ContextLengthExceeded, match=r"is 40 .* media reach position 40"):
        submit(engine(context=40), range(3), positions=[0, 1, 39])


def test_more_min_tokens_than_the_rest_of_the_context_are_refused() -> None:
    least = {"min_tokens": 6, "max_tokens": 9}
    assert submit(engine(context=40), range(34), **least) == [6]
    with pytest.raises(ContextLengthExceeded, match="in 35 tokens, and at least 6 must be gener"):
        submit(engine(context=40), range(35), **least)
    with pytest.raises(ContextLengthExceeded, match="position 35"):
        submit(engine(context=40), range(3), positions=[0, 1, 34], **least)
    with pytest.raises(ContextLengthExceeded, match="X-LoRA") as raised:
        submit(engine(pages(10), context=40), range(15), mixture=xlora("x"), **least)
    assert (raised.value.context, raised.value.prompt_tokens, raised.value.needed) == (20, 15, 21)


def test_media_that_exceed_the_cross_cache_are_refused() -> None:
    made = engine(pages(64), cross(3))
    with pytest.raises(RequestError, match="no room in the cache for 2 media"):
        submit(made, range(9), items=[view("a", 1), view("b", 3)])
    submit(made, range(9), items=[view("a", 1)])


def test_the_same_id_is_refused_while_it_runs() -> None:
    made = engine()
    submit(made, range(3))
    with pytest.raises(RequestError, match="a request with id 'a' is running"):
        submit(made, range(3))
    made.abort("a")
    submit(made, range(3))


def test_an_xlora_request_may_use_half_of_a_small_cache() -> None:
    """It needs twice the blocks of others: a longer one would wait forever."""
    small = engine(pages(10), context=40)
    with pytest.raises(ContextLengthExceeded, match="X-LoRA"):
        submit(small, range(20), mixture=xlora("x"))
    assert submit(small, range(15), mixture=xlora("x")) == [5]
    small.abort("a")
    assert submit(small, range(15), mixture=lora("x")) == [25]
    assert submit(engine(pages(22), context=40), range(15), mixture=xlora("x")) == [25]


def test_the_smallest_pool_limits_the_longest_sequence() -> None:
    blocks = BlockManager([pages(10), pages(6, window=6)], BLOCK)
    assert blocks.max_length(100, rows=4) == 40, "a window of 6 tokens needs 5 blocks at most"
    assert blocks.max_length(100, rows=16) == 24
    assert blocks.max_length(20, rows=16) == 20
    assert blocks.max_length(100, rows=4, passes=2) == 12


def test_cached_features_depend_on_the_adapters() -> None:
    """An activated adapter that begins after an image does not change its features."""
    items = [image("a", 2, 4), view("b", 9)]
    [first, second] = rekey_media(items, lora("x", encodes=True))
    assert first.key != items[0].key and second.key != items[1].key
    assert rekey_media(items, lora("x")) == items
    assert rekey_media(items, lora("x", scale=0.5, encodes=True)) != [first, second]
    assert rekey_media(items, lora("x", since=5, encodes=True)) == [items[0], second]
