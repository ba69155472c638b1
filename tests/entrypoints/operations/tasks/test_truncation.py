"""Which of the oldest items of a conversation are dropped so that it fits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from ostro.core.errors import ContextLengthExceeded, TemplateError
from ostro.entrypoints.operations.tasks.truncation import oldest_to_drop


def dropped(
    sizes: Sequence[int], context: int, max_tokens: int | None = None, refused: int = 99
) -> tuple[int, int]:
    """How many items are dropped, and how often prompts are counted.

    sizes: the tokens of the items; from `refused` dropped items on, the template fails.
    """
    counted = list[int]()

    async def count(number: int) -> int:
        assert 0 < number < len(sizes)
        counted.append(number)
        if number >= refused:
            raise TemplateError("no message of the user")
        tokens = sum(sizes[number:])
        if tokens > 8 * context:
            raise ContextLengthExceeded("too long")
        return tokens

    error = ContextLengthExceeded.of(context, sum(sizes))
    most = len(sizes) - 1
    return asyncio.run(oldest_to_drop(count, most, error, max_tokens)), len(counted)


@pytest.mark.parametrize(
    ("max_tokens", "expected"),
    [(1, 91), (9, 91), (10, 91), (11, 92), (25, 93), (26, 93), (None, 93)],
)
def test_the_answer_has_room(max_tokens: int | None, expected: int) -> None:
    """Of its limit, or of a quarter of the context: 100 items of 10 tokens in 100."""
    sizes = [10] * 100
    number, counts = dropped(sizes, 100, max_tokens)
    assert number == expected and counts <= 7


def test_every_number_of_items_may_have_to_go() -> None:
    for first in range(1, 40):
        sizes = [1000] * first + [1] * (40 - first)
        assert dropped(sizes, 200)[0] == first


def test_without_room_the_shortest_conversation_stays() -> None:
    assert dropped([50, 50, 90], 100)[0] == 2
    assert dropped([50, 50, 99], 100)[0] == 2


def test_the_last_item_may_be_too_long() -> None:
    for last in (100, 10_000):
        with pytest.raises(ContextLengthExceeded, match=str(100 + last)):
            dropped([50, 50, last], 100)
    with pytest.raises(ContextLengthExceeded):
        dropped([200], 100)


def test_a_template_may_need_the_first_items() -> None:
    assert dropped([50, 50, 50, 50, 50], 100, 1, refused=5)[0] == 4
    assert dropped([90, 10, 10, 10, 10], 100, refused=2)[0] == 1
    with pytest.raises(ContextLengthExceeded, match="250"):
        dropped([50, 50, 50, 50, 50], 100, refused=2)
