"""The store that OpenAI's routes for documents need."""

from __future__ import annotations

from ostro.entrypoints.operations.operations import Operations


def require_store(operations: Operations) -> None:
    """Raise Unsupported on a server without a store."""
    operations.documents.state.require()
