"""What OpenAI's routes for documents share: pages of lists, and the limit on their requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import msgspec

MAX_JSON = 1 << 20
"""Limit on the bytes of a JSON body."""


class ListPage(msgspec.Struct, kw_only=True):
    """A page of a list, which its subclasses have in `data`; `last_id` is the next cursor."""

    has_more: bool
    first_id: str | None
    last_id: str | None
    object: Literal["list"] = "list"


P = TypeVar("P", bound=ListPage)


def make_page(
    kind: Callable[..., P], data: Sequence[Any], has_more: bool, empty: str | None = None
) -> P:
    """Return a page of a type with these objects; `empty` stands for the ids of an empty page."""
    first, last = (data[0].id, data[-1].id) if data else (empty, empty)
    return kind(data=data, has_more=has_more, first_id=first, last_id=last)
