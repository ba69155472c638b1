"""The number of media in one request."""

from __future__ import annotations

from collections.abc import Sequence

from ostro.core.errors import RequestError

MAX_MEDIA = 64
"""Media in one request."""


def check_count(media: Sequence[object]) -> None:
    """Raise RequestError for more media than one request may have."""
    if len(media) > MAX_MEDIA:
        raise RequestError(
            f"{len(media)} media in one request; at most {MAX_MEDIA} are allowed", param="messages"
        )
