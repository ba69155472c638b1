"""What a request knows of its server: the operations, the documents and the caller."""

from __future__ import annotations

from contextvars import ContextVar

from starlette.requests import HTTPConnection

from ostro.entrypoints.operations.caller import ANYONE, Caller
from ostro.entrypoints.operations.documents import Documents
from ostro.entrypoints.operations.operations import Operations
from ostro.entrypoints.operations.request_batches import RequestBatches

REQUEST_ID: ContextVar[str] = ContextVar("REQUEST_ID", default="")
"""The id of the request that the running task handles."""


def request_id() -> str:
    """Return the id of the request that the running task handles; "" outside of a request."""
    return REQUEST_ID.get()


def operations_of(connection: HTTPConnection) -> Operations:
    """Return the operations of the server."""
    operations: Operations = connection.app.state.operations
    return operations


def documents_of(connection: HTTPConnection) -> Documents:
    """Return the stored documents of the server."""
    documents: Documents = connection.app.state.documents
    return documents


def batches_of(connection: HTTPConnection, kind: str) -> RequestBatches:
    """Return the batches of a kind; their ids are `kind`, an underscore and 32 digits."""
    return documents_of(connection).batches_of(kind)


def caller_of(connection: HTTPConnection) -> Caller:
    """Return the caller that the middleware has authenticated."""
    caller: Caller = connection.scope.get("state", {}).get("caller", ANYONE)
    return caller
