"""The parameters of the transcription logits processor, as sent to the engine."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class TranscriptionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens that may follow.

    banned: never allowed; first: not allowed as the first token; only: if not empty, the only
    allowed tokens; timestamps: the id of the timestamp 0, all ids from it on are timestamps (None:
    no timestamps); latest: the last timestamp that may come first, relative to that id (None: any);
    end: the id of the end; ids below it are text.
    """

    banned: Sequence[int] = ()
    first: Sequence[int] = ()
    only: Sequence[int] = ()
    timestamps: int | None = None
    latest: int | None = None
    end: int = 0
