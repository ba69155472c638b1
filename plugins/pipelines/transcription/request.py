"""What the pipeline asks of its logits processor: plain data on its way to the engine."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class TranscriptionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which tokens may follow.

    banned: never; first: not as the first one; only: nothing else, where it names any; timestamps:
    the id of the time 0, from which on all ids are times (None: no times); latest: the last time,
    counted from there, that may come first (None: any); end: the id that ends a text, below which
    ids are words.
    """

    banned: Sequence[int] = ()
    first: Sequence[int] = ()
    only: Sequence[int] = ()
    timestamps: int | None = None
    latest: int | None = None
    end: int = 0
