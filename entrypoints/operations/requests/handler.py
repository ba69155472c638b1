"""Calls the handler of a route, for an HTTP request or a request of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import isawaitable
from typing import Any

from ostro.core.plugins.task_errors import task_errors
from ostro.core.routes import Route


async def call(
    route: Route,
    operations: Any,
    caller: Any,
    request: Any,
    parameters: Mapping[str, Any],
    place: str,
) -> Any:
    """Return the result of a route's handler.

    place: the route and its plugin, a note of the errors of the handler. Raises the errors of the
    handler, see `task_errors`, and TypeError for a function that is not async or returns None.
    """
    assert route.handler is not None
    with task_errors(place):
        work: Any = route.handler(operations, caller, request, **parameters)
        if not isawaitable(work):
            raise TypeError(
                f"the handler returned {type(work).__name__}, expected an awaitable; write it as "
                "`async def`, which returns an object, a generator of events or a Content"
            )
        if (result := await work) is None:
            raise TypeError(
                "the handler returned None, expected an object, a generator of events or a "
                "Content; for an empty response return Content(data=b'', status=204)"
            )
        return result
