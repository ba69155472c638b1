"""Calls that bypass the scheduler, such as pooling: their sequences, and whether blocks suffice."""

from __future__ import annotations

from collections.abc import Sequence

from ostro.core.engine.blocks import BlockManager
from ostro.core.engine.sequence import Sequence as TokenSequence
from ostro.core.errors import OstroError, Overloaded, RequestError
from ostro.core.messages.arrays import Array
from ostro.core.messages.prompt import Item
from ostro.core.messages.requests import TokenRequest


def standalone_sequence(
    tokens: Sequence[int], items: Sequence[Item] = (), positions: Array | None = None
) -> TokenSequence:
    """A sequence without a request."""
    request = TokenRequest(id="", tokens=list(tokens), items=list(items), positions=positions)
    return TokenSequence(
        request, 0, arrival=0, seed=0, root=b"", limit=0, tokens=list(tokens), prompt=len(tokens)
    )


def count_blocks(blocks: BlockManager, length: int, passes: int = 1) -> list[int]:
    """The blocks of each group for a new sequence whose tokens are computed in one step."""
    pairs = blocks.pairs(blocks.new_tables(1))
    return [passes * sum(blocks.missing(group, table, length)) for group, table in pairs]


def are_available(blocks: BlockManager, counts: Sequence[int]) -> bool:
    """Whether each group has so many available blocks."""
    return all(n <= g.pool.available for n, g in zip(counts, blocks.groups, strict=True))


def can_be_available(blocks: BlockManager, counts: Sequence[int]) -> bool:
    """Whether each group has so many blocks, in use or not."""
    return all(n <= g.pool.size for n, g in zip(counts, blocks.groups, strict=True))


def are_in_use(blocks: BlockManager) -> bool:
    """Whether a sequence has blocks."""
    return any(group.pool.used for group in blocks.all)


def no_room(blocks: BlockManager, what: str, param: str) -> OstroError:
    """The error of a call that does not get enough blocks.

    It is Overloaded if sequences have blocks, which they will release.
    """
    if are_in_use(blocks):
        return Overloaded(f"no room in the cache for {what} now; try again")
    return RequestError(f"no room in the cache for {what}", param=param)
