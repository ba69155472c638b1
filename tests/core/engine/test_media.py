"""The engine with media: block keys, cached features, atoms, cross blocks, and full pools."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from ostro import Array, Item, content_key
from ostro.core.engine.blocks import EncoderBlocks
from ostro.core.engine.engine import Engine
from ostro.core.engine.scheduler import StepPlan
from ostro.core.errors import RequestError
from ostro.core.messages.requests import Sampling, TokenRequest
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.parity import BAR, Subject, deviation, subject

Build = Callable[..., Engine]
BLOCK = 16
PAD, ROWS = 1, 16
"""The placeholder token of a row of an inline image, and the rows of an image."""
MARK, LENGTH = 128, 20
"""The first token that attends to an image, and the rows of one of two tiles."""
WORDS = list(range(20, 120))


@pytest.fixture(scope="module")
def inline(plugins: PluginManager) -> Iterator[Subject]:
    """A model with inline images, which replace placeholder tokens."""
    with subject(plugins, "llava") as made:
        yield made


@pytest.fixture(scope="module")
def cross(plugins: PluginManager) -> Iterator[Subject]:
    """A model with cross attention to images."""
    with subject(plugins, "mllama") as made:
        yield made


def noise(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def picture(seed: int, start: int, *, atomic: bool = False, cost: int = ROWS) -> Item:
    """An inline image whose rows begin at token `start`."""
    pixels = noise(seed, 3, 24, 24)
    return Item(
        kind="image",
        key=content_key(pixels),
        arrays={"pixels": Array.of(pixels)},
        spans=((start, ROWS),),
        atomic=atomic,
        cost=cost,
    )


def view(seed: int, since: int) -> Item:
    """An image of two tiles that tokens from `since` on attend to."""
    pixels, ratio = noise(seed, 2, 3, 12, 12), np.array([2])
    return Item(
        kind="image",
        key=content_key(pixels, ratio),
        arrays={"pixels": Array.of(pixels), "ratio": Array.of(ratio)},
        since=since,
        length=LENGTH,
        cost=64,
    )


def inline_request(
    id: str, *seeds: int, before: int = 9, after: int = 9, count: int = 8, **more: Any
) -> TokenRequest:
    """A text with images in between."""
    tokens, items = WORDS[:before], list[Item]()
    for seed in seeds:
        items.append(picture(seed, len(tokens), **more))
        tokens = [*tokens, *[PAD] * ROWS, *WORDS[before : before + after]]
    return request(id, tokens, items, count)


def cross_request(id: str, *seeds: int, before: int = 9, count: int = 8) -> TokenRequest:
    tokens, items = WORDS[:before], list[Item]()
    for seed in seeds:
        items.append(view(seed, len(tokens)))
        tokens = [*tokens, MARK, *WORDS[before : before + 9]]
    return request(id, tokens, items, count)


def request(id: str, tokens: list[int], items: list[Item], count: int = 8) -> TokenRequest:
    rules = Sampling(temperature=0, max_tokens=count, ignore_eos=True)
    return TokenRequest(id=id, tokens=tokens, items=items, sampling=rules)


def run(engine: Engine, *requests: TokenRequest) -> dict[str, list[int]]:
    for each in requests:
        engine.submit(each)
    generated: dict[str, list[int]] = {each.id: [] for each in requests}
    for output in engine.drain():
        generated[output.id] += output.tokens
    return generated


def plans(engine: Engine) -> list[StepPlan]:
    """The plans that the engine launches from now on."""
    launched, found = engine.runner.forward, list[StepPlan]()

    def note(plan: StepPlan) -> Any:
        assert all(chunk.count > 0 for chunk in plan.chunks)
        found.append(plan)
        return launched(plan)

    engine.runner.forward = note  # type: ignore[method-assign]
    return found


def encoded(found: list[StepPlan]) -> list[int]:
    """The number of media in each step with encoder work."""
    counts = [len(plan.encodes) + len(plan.encoder_blocks) for plan in found]
    return [count for count in counts if count]


def test_block_keys_contain_the_media_with_rows_in_the_block(inline: Subject) -> None:
    engine = inline.engine()

    def chain(*items: Item, salt: str = "") -> list[bytes]:
        tokens = [*WORDS[:9], *[PAD] * 32, *WORDS[9:40]]
        altered = replace(request("x", tokens, list(items)), salt=salt)
        engine.submit(altered)
        [sequence] = engine.live["x"]
        [found] = sequence.chains(BLOCK, len(tokens))
        engine.abort("x")
        return found

    early, late = chain(picture(1, 9)), chain(picture(1, 25))
    assert chain(picture(1, 9)) == early
    assert not {*early} & {*chain(picture(2, 9))}, "another image in the first block"
    assert not {*early} & {*chain(picture(1, 9), salt="other")}
    assert late[:1] == chain()[:1] and not {*late[1:]} & {*chain()[1:]}
    assert not {*late[1:]} & {*chain(picture(2, 25))[1:]}


def test_block_keys_contain_a_cross_medium_at_its_first_token(
    cross: Subject, engine_of: Build
) -> None:
    engine = engine_of(cross)
    first = run(engine, cross_request("a", 1, before=40))["a"]
    assert run(engine, cross_request("a", 1, before=40))["a"] == first
    assert engine.stats().cached_tokens == 48
    other = run(engine, cross_request("b", 2, before=40))["b"]
    assert engine.stats().cached_tokens == 48 + 32, "the blocks before the image are shared"
    assert other == run(engine_of(cross), cross_request("b", 2, before=40))["b"]


def test_an_image_twice_in_a_prompt_and_in_a_batch_is_encoded_once(
    inline: Subject, engine_of: Build
) -> None:
    engine = engine_of(inline)
    found = plans(engine)
    requests = [inline_request("a", 1, 1), inline_request("b", 1, 2), inline_request("c", 2)]
    generated = run(engine, *requests)
    assert encoded(found) == [2] and len(engine.runner.features.entries) == 2
    for each in requests:
        assert generated[each.id] == run(engine_of(inline), each)[each.id]


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["inline", "cross"])
def test_an_encoder_error_ends_the_request_of_its_medium_alone(
    kind: str, request: pytest.FixtureRequest, engine_of: Build
) -> None:
    """All media of a step are one batch; the others of that batch are encoded all the same."""
    engine = engine_of(request.getfixturevalue(kind))
    if kind == "inline":
        ask, odd = inline_request, {"pixels": Array.of(noise(3, 3, 25, 25))}
    else:
        odd = {"pixels": Array.of(noise(3, 2, 3, 12, 12)), "ratio": Array.of(np.array([99]))}
        ask = cross_request
    good = [ask("a", 1), ask("b", 2)]
    wanted = [run(engine_of(request.getfixturevalue(kind)), each)[each.id] for each in good]
    bad = ask("bad", 3)
    bad = replace(bad, items=[replace(bad.items[0], arrays=odd, key=b"odd")])
    found = plans(engine)
    for each in (good[0], bad, good[1]):
        engine.submit(each)
    generated: dict[str, list[int]] = {"a": [], "b": []}
    errors = list[str]()
    while engine.busy:
        for output in engine.step():
            if output.error is not None:
                assert output.id == "bad" and output.finish == "error"
                errors.append(output.error)
            else:
                generated[output.id] += output.tokens
    assert encoded(found)[0] == 2, "media that cannot be encoded are not in the plan"
    assert [generated["a"], generated["b"]] == wanted
    [error] = errors
    if kind == "inline":
        assert error == "an image of 25 x 25 pixels, expected 24 x 24; resize it"
    else:
        assert "IndexError" in error and "in encoding of image (plugin quant.dense" in error
        assert "called by architectures.mllama, vision.py:" in error
    assert engine.stats().blocks_used == 0 and not engine.scheduler.running
    store = engine.runner.features
    assert store.nbytes == sum(t.nbytes for each in store.entries.values() for t in each)
    assert run(engine, good[0])["a"] == wanted[0]


def test_features_are_evicted_and_computed_again(inline: Subject, engine_of: Build) -> None:
    engine = engine_of(inline)
    store, each = engine.runner.features, ROWS * 64 * 4
    store.limit = 2 * each
    found = plans(engine)
    for seed in (1, 2, 3):
        run(engine, inline_request("x", seed))
    assert len(store.entries) == 2 and store.nbytes == 2 * each
    found.clear()
    run(engine, inline_request("other words", 3, before=5), inline_request("others", 1, before=5))
    assert encoded(found) == [1], "the third is still there, the first is not"
    store.limit = 0
    alone = run(engine_of(inline), inline_request("y", 4, 5))
    assert run(engine, inline_request("y", 4, 5)) == alone
    assert not store.entries and not store.nbytes


def test_the_rows_of_a_step_bound_its_encoder_work(inline: Subject, engine_of: Build) -> None:
    """But at least one medium is encoded, whatever its cost."""
    engine = engine_of(inline, rows=64)
    found = plans(engine)
    costly = inline_request("x", 1, 2, 3, cost=40)
    generated = run(engine, costly)
    assert encoded(found) == [1, 1, 1] and max(plan.rows for plan in found) <= 64
    assert generated == run(engine_of(inline), costly)
    engine = engine_of(inline, rows=64)
    assert run(engine, inline_request("x", 1, 2, 3, cost=1000)) == generated


@pytest.mark.sample(1)
@pytest.mark.parametrize("rows", [1, 7, 15, 16, 17, 25, 40])
def test_no_step_begins_or_ends_within_an_atom(
    inline: Subject, engine_of: Build, rows: int
) -> None:
    """Also in a batch with another prompt with atoms, and with a decode."""
    requests = [
        inline_request("text", before=30, count=20),
        inline_request("a", 1, 2, atomic=True),
        inline_request("b", 3, before=3, atomic=True),
    ]
    alone = {each.id: run(engine_of(inline), each)[each.id] for each in requests}
    engine = engine_of(inline, rows=rows)
    found = plans(engine)
    assert run(engine, *requests) == alone
    for plan in found:
        for chunk in plan.chunks:
            for edge in (chunk.start, chunk.start + chunk.count):
                atoms = chunk.sequence.atoms
                assert not any(first < edge < stop for first, stop in atoms), f"{edge = }"
    assert engine.stats().blocks_used == 0


def test_rows_of_an_atom_attend_to_each_other(inline: Subject) -> None:
    """And tokens after them get other hidden states than without."""
    tokens = inline_request("x", 1).tokens
    runner = inline.engine().runner
    causal = runner.logits(tokens, items=[picture(1, 9)])
    both = runner.logits(tokens, items=[picture(1, 9, atomic=True)])
    assert deviation(both[:9], causal[:9]) <= BAR
    assert deviation(both[9:24], causal[9:24]) > 10 * BAR
    assert deviation(both[25:], causal[25:]) > 10 * BAR


def test_a_prefix_hit_does_not_end_within_an_atom(inline: Subject, engine_of: Build) -> None:
    """The image's rows are 9..25; the first block ends within."""
    engine = engine_of(inline)
    run(engine, inline_request("a", 1, before=9, after=3, atomic=True))
    second = inline_request("b", 1, before=9, after=20, atomic=True)
    generated = run(engine, second)
    assert engine.stats().cached_tokens == 0
    assert generated == run(engine_of(inline), second)
    longer = inline_request("c", 1, before=9, after=40, atomic=True)
    generated = run(engine, longer)
    assert engine.stats().cached_tokens == 32
    assert generated == run(engine_of(inline), longer)


def pool(engine: Engine) -> Any:
    [group] = engine.blocks.cross_groups
    return group.pool


def test_cross_blocks_are_written_once_and_shared(cross: Subject, engine_of: Build) -> None:
    engine = engine_of(cross)
    found = plans(engine)
    engine.submit(cross_request("a", 1, count=30))
    for _ in range(4):
        engine.step()
    assert pool(engine).used == 2, "two blocks hold the 20 rows of an image"
    engine.submit(cross_request("b", 1, before=5, count=30))
    for _ in range(4):
        engine.step()
    assert pool(engine).used == 2 and encoded(found) == [1]
    [b] = engine.live["b"]
    [memory] = b.encoder_blocks
    assert memory.written and [pool(engine).users[block] for block in memory.blocks[0]] == [2, 2]
    engine.abort("a")
    assert pool(engine).used == 2
    engine.drain()
    assert pool(engine).used == 0
    run(engine, cross_request("c", 1, before=3))
    assert encoded(found) == [1], "idle blocks are found again"
    run(engine, *[cross_request(str(i), i, before=3) for i in range(2, 40)])
    found.clear()
    run(engine, cross_request("d", 1, before=2))
    assert encoded(found) == [1], "they were evicted for others"


def test_a_batch_of_sequences_with_and_without_media(cross: Subject, engine_of: Build) -> None:
    requests = [
        cross_request("one", 1),
        request("none", WORDS[:30], []),
        cross_request("two", 2, 3),
        cross_request("same", 1, 1, before=2),
    ]
    engine = engine_of(cross, rows=24)
    generated = run(engine, *requests)
    for each in requests:
        assert generated[each.id] == run(engine_of(cross), each)[each.id]
    assert engine.stats().blocks_used == 0


def test_a_request_without_room_for_a_medium_waits(cross: Subject, engine_of: Build) -> None:
    """Three requests, and room for the media of two."""
    requests = [cross_request(str(i), i, before=3 + i) for i in range(1, 4)]
    engine = engine_of(cross, blocks=6)
    taken = [engine.blocks.acquire(view(90, 0))]
    for each in requests:
        engine.submit(each)
    outputs = [output for _ in range(3) for output in engine.step()]
    assert len(engine.scheduler.running) == 2 and len(engine.scheduler.waiting) == 1
    generated: dict[str, list[int]] = {each.id: [] for each in requests}
    for output in [*outputs, *engine.drain()]:
        generated[output.id] += output.tokens
    assert generated == {each.id: run(engine_of(cross), each)[each.id] for each in requests}
    for memory in taken:
        assert isinstance(memory, EncoderBlocks)
        engine.blocks.release_encoder(memory)
    assert pool(engine).used == 0


def test_a_request_with_room_for_one_of_two_media_holds_neither(
    cross: Subject, engine_of: Build
) -> None:
    engine = engine_of(cross, blocks=4)
    memory = engine.blocks.acquire(view(90, 0))
    assert memory is not None
    engine.submit(cross_request("x", 1, 2, before=3))
    engine.step()
    assert not engine.scheduler.running and pool(engine).used == 2
    engine.blocks.release_encoder(memory)
    assert len(engine.drain()) == 8 and pool(engine).used == 0


def test_media_that_never_fit_are_refused(cross: Subject, engine_of: Build) -> None:
    engine = engine_of(cross, blocks=4)
    with pytest.raises(RequestError, match="room"):
        engine.submit(cross_request("x", 1, 2, 3, before=3))
    with pytest.raises(RequestError, match="no room in the cache for this image"):
        each = cross_request("x", 1, 2, 3, before=3)
        engine.runner.logits(each.tokens, items=each.items)
    assert pool(engine).used == 0


def test_preemption_does_not_change_outputs_with_images(cross: Subject, engine_of: Build) -> None:
    requests = [cross_request(str(i), i, before=10 + i, count=40) for i in range(1, 5)]
    engine = engine_of(cross, blocks=8)
    assert run(engine, *requests) == run(engine_of(cross), *requests)
    assert engine.stats().preemptions > 0 and engine.stats().blocks_used == 0


def test_items_outside_of_the_prompt_are_refused(inline: Subject) -> None:
    engine = inline.engine()
    with pytest.raises(RequestError, match="not within the prompt"):
        engine.submit(request("x", WORDS[:20], [picture(1, 9)]))
