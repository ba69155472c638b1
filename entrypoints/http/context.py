"""What a request knows of its server: the operations, the documents and the caller."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from ostro.entrypoints.http.request_record import RECORD
from ostro.entrypoints.operations.access.caller import ANYONE, Caller
from ostro.entrypoints.operations.documents.documents import Documents
from ostro.entrypoints.operations.operations import Operations


def operations_of(connection: HTTPConnection) -> Operations:
    """Return the operations of the server."""
    operations: Operations = connection.app.state.operations
    return operations


def documents_of(connection: HTTPConnection) -> Documents:
    """Return the stored documents of the server."""
    return operations_of(connection).documents


def caller_of(connection: HTTPConnection) -> Caller:
    """Return the caller that the middleware has authenticated."""
    caller: Caller = connection.scope.get("state", {}).get("caller", ANYONE)
    return caller


def base_url() -> str:
    """Return the URL of the server as the client of the running request addressed it.

    It ends with a slash; it is "/" outside of a request.
    """
    record = RECORD.get()
    return "/" if record is None else str(HTTPConnection(record.scope).base_url)
