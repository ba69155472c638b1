"""The metadata of stored documents."""

from __future__ import annotations

from typing import Annotated

import msgspec

Metadata = Annotated[
    dict[Annotated[str, msgspec.Meta(max_length=64)], Annotated[str, msgspec.Meta(max_length=512)]],
    msgspec.Meta(max_length=16),
]
"""Up to 16 values of up to 512 characters, by names of up to 64, as in OpenAI's API."""


class MetadataRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """New metadata of a document; null removes all."""

    metadata: Metadata | None
