"""The scheduler: random requests of every kind finish and release all blocks."""

from __future__ import annotations

import random

import pytest
from tiny.loop import (
    BLOCK,
    Loop,
    Room,
    cross,
    image,
    lora,
    pages,
    states,
    view,
    xlora,
)

from ostro.core.engine.sequence import Sequence

SETTINGS = {
    "pages": lambda: [pages(24)],
    "window": lambda: [pages(24), pages(16, window=6)],
    "states": lambda: [states(14), pages(24)],
    "cross": lambda: [pages(24), cross(6)],
}


@pytest.mark.sample(12)
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("kinds", SETTINGS)
@pytest.mark.parametrize("seed", range(12))
def test_random_requests_finish_and_release_all_blocks(seed: int, kinds: str, lag: int) -> None:
    """The loop checks rows, slots, users and adapters in every step."""
    rng = random.Random(seed)
    loop = Loop(
        *SETTINGS[kinds](),
        rows=rng.choice([3, 7, 16]),
        seqs=rng.choice([1, 3, 6]),
        lag=lag,
        room=Room(rng.choice([1, 2, 4])),
        features=rng.choice([0, 2, 100]),
    )
    aborted, added = set[Sequence](), list[Sequence]()
    for _ in range(60):
        if rng.random() < 0.5:
            added += random_request(loop, rng, kinds)
        if loop.live and rng.random() < 0.1:
            sequence = rng.choice(loop.live)
            loop.abort(sequence)
            aborted.add(sequence)
        loop.step()
    loop.run()
    assert [s.finish for s in added if s not in aborted] == ["length"] * len(loop.finished)
    assert all(len(s.tokens) == s.prompt + s.limit for s in loop.finished)
    pools = [group.pool for group in loop.blocks.all]
    assert all(pool.used == 0 and pool.available == pool.size for pool in pools)
    assert sorted(loop.scheduler.rows) == list(range(loop.scheduler.max_seqs))


def random_request(loop: Loop, rng: random.Random, kinds: str) -> list[Sequence]:
    """A prompt with a common prefix; sometimes with media, adapters, choices and priorities."""
    length = rng.choice([1, 5, BLOCK, 2 * BLOCK, 18, 30])
    prompt = [*range(rng.randrange(length + 1))]
    prompt += [rng.randrange(3) for _ in range(length - len(prompt))]
    mixtures = [lora("x"), lora("x", scale=0.5), lora("y", since=3)]
    if kinds != "cross":
        mixtures += [xlora("m"), xlora("m", held_after=2)]
    mixture = {"mixture": rng.choice(mixtures)} if rng.random() < 0.3 else {}
    items = []
    if length >= 18 and rng.random() < 0.5 and not mixture:
        key, first = rng.choice("abc"), rng.randrange(8)
        if kinds == "cross":
            items = [view(key, first, length=rng.choice([4, 8]), cost=5)]
        elif kinds != "states":
            items = [image(key, first, 6, (first + 7, 3), atomic=rng.random() < 0.5, cost=5)]
    return loop.choices(
        prompt,
        n=rng.choice([1, 1, 1, 3]),
        limit=rng.choice([1, 3, 12]),
        priority=rng.choice([0, 0, 1]),
        salt=rng.choice(["", "", "other"]),
        cache=rng.random() < 0.9,
        items=items,
        waits=rng.random() < 0.1,
        **mixture,
    )
