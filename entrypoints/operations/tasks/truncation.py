"""Conversations that are longer than the context: which of them fit without the oldest items."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ostro.core.errors import ContextLengthExceeded, TemplateError

ROOM = 4
"""The context is divided by this for the most tokens that truncation leaves to the answer."""


async def oldest_to_drop(
    count: Callable[[int], Awaitable[int]],
    most: int,
    error: ContextLengthExceeded,
    max_tokens: int | None,
    max_total_tokens: int | None = None,
) -> int:
    """Return how many of the oldest items to drop from a conversation: as few as needed.

    The answer has room for `max_tokens`, but not for more than a quarter of the context, which is
    `max_total_tokens` if that is less. If a conversation without `most` items leaves less room,
    these are dropped.

    count  counts the tokens of the prompt without a number of items
    most   the most items that may be dropped
    error  that of the whole conversation, raised if the others are too long, too

    A template may refuse a conversation without its first items: then fewer are dropped.
    """
    context = error.context or 0
    if max_total_tokens is not None:
        context = min(context, max_total_tokens)
    room = min(context // ROOM, context if max_tokens is None else max_tokens)
    least, fewest, shortest = 1, 0, 0
    while least <= most:
        dropped = (least + most) // 2
        try:
            tokens = await count(dropped)
        except TemplateError:
            most = dropped - 1
            continue
        except ContextLengthExceeded:
            tokens = context
        if tokens <= context - room:
            fewest, most = dropped, dropped - 1
            continue
        least = dropped + 1
        if tokens < context:
            shortest = dropped
    if not fewest and not shortest:
        raise error
    return fewest or shortest
