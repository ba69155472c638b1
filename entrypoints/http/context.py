"""What a request knows of its server: the operations and the caller."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from ostro.entrypoints.operations.access.caller import ANYONE, Caller
from ostro.entrypoints.operations.operations import Operations


def operations_of(connection: HTTPConnection) -> Operations:
    """Return the operations of the server."""
    operations: Operations = connection.app.state.operations
    return operations


def caller_of(connection: HTTPConnection) -> Caller:
    """Return the caller that the middleware has authenticated."""
    caller: Caller = connection.scope.get("state", {}).get("caller", ANYONE)
    return caller
