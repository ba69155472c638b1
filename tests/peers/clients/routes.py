"""The features of a client on each route: run them against a server, and print the results as JSON.

A feature is one or two functions of a client: of a whole answer, and of a stream. Both run with the
synchronous and with the asynchronous client, which `wait` and `collect` treat alike. A function
raises an error if the feature does not work, and returns what `rejected` returns if the server is
to reject it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

Check = Callable[[Any], Awaitable[str | None]]

KEY, ADMIN = "secret", "admin"
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)
"""A PNG file in base64."""


@dataclass(frozen=True)
class Feature:
    """A feature of a client on a route."""

    route: str
    name: str
    whole: Check | None = None
    stream: Check | None = None


async def wait(value: Any) -> Any:
    """The result of a call of either client."""
    return await value if inspect.isawaitable(value) else value


async def collect(call: Any) -> list[Any]:
    """The events of a stream, or the items of all pages, of either client."""
    items = call if hasattr(call, "__aiter__") else await wait(call)
    return [item async for item in items] if hasattr(items, "__aiter__") else [*items]


async def finish(manager: Any, last: str) -> tuple[list[Any], Any]:
    """The events of a stream helper of either client, and the result of its method `last`."""
    if hasattr(manager, "__aenter__"):
        async with manager as stream:
            return [event async for event in stream], await wait(getattr(stream, last)())
    with manager as stream:
        return [*stream], getattr(stream, last)()


async def until(call: Callable[[], Any], done: Callable[[Any], bool]) -> Any:
    """The first result of the repeated call that is done. Raises TimeoutError after a minute."""
    for _ in range(600):
        result = await wait(call())
        if done(result):
            return result
        await asyncio.sleep(0.1)
    raise TimeoutError(f"not done after a minute: {result}")


async def rejected(call: Callable[[], Any], status: int, *words: str) -> str:
    """What the table says of a call that the server rejects.

    Raises AssertionError for no error, another status, or a message without one of the words.
    """
    try:
        result = await wait(call())
        if hasattr(result, "__next__") or hasattr(result, "__anext__"):
            result = await collect(result)
    except Exception as error:
        if not hasattr(error, "status_code"):
            raise
        body = getattr(error, "body", None)
        detail = body.get("error", body) if isinstance(body, dict) else {}
        message = str(error)
        assert error.status_code == status, f"{error.status_code}, not {status}: {message}"
        missing = [word for word in words if word not in message]
        assert not missing, f"the message does not name {missing}: {message}"
        code = detail.get("code") or detail.get("type") if isinstance(detail, dict) else None
        return f"rejected: {status} {code}" if code else f"rejected: {status}"
    raise AssertionError(f"not rejected: {result}")


async def outcome(check: Check, client: Any) -> str:
    """The cell of the table: "works", "rejected: ..." or "failed: ...", which is a fault."""
    try:
        return await check(client) or "works"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[1]
        return f"failed: {type(error).__name__}: {error} (line {where.lineno}: {where.line})"


async def results(
    features: Sequence[Feature], clients: dict[str, Any], names: Sequence[str]
) -> list[dict[str, str]]:
    rows = []
    for feature in features:
        if names and feature.name not in names:
            continue
        row = {"route": feature.route, "feature": feature.name}
        for kind, client in clients.items():
            if feature.whole is not None:
                row[kind] = await outcome(feature.whole, client)
            if feature.stream is not None:
                row[f"{kind} stream"] = await outcome(feature.stream, client)
        rows.append(row)
    return rows


def run_routes(features: Sequence[Feature], clients: Callable[[str], dict[str, Any]]) -> None:
    """Run each feature, or those named on the command line, and print the rows of the table.

    `clients` returns the synchronous and the asynchronous client of a URL as "sync" and "async".
    """
    url, *names = sys.argv[1:]

    async def main() -> list[dict[str, str]]:
        return await results(features, clients(url), names)

    print(json.dumps(asyncio.run(main())))
