"""Paths of clients whose base URL lacks /v1, and paths with a slash at their end."""

from __future__ import annotations

from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

VERSION = "/v1"
"""The path below which most clients expect OpenAI's and Anthropic's routes."""


class BaseUrl:
    """Replaces a path that no route has by that of a route without the slash, or below /v1.

    Whatever comes behind it sees the path of the route only: keys, limits, metrics and the log.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan" and not is_usual(scope["path"]) and not has_route(scope):
            path = scope["path"].rstrip("/")
            raw = (scope.get("raw_path") or scope["path"].encode()).rstrip(b"/")
            for prefix in ("", VERSION):
                other = {**scope, "path": prefix + path, "raw_path": prefix.encode() + raw}
                if has_route(other):
                    scope = other
                    break
        await self.app(scope, receive, send)


def is_usual(path: str) -> bool:
    """Whether a path needs no other: the routes need not be searched twice for it."""
    return path.startswith(f"{VERSION}/") and not path.endswith("/")


def has_route(scope: Scope) -> bool:
    """Whether a route has the path of a request. The empty id of "/v1/models/" is none."""
    for route in scope["app"].routes:
        match, matched = route.matches(scope)
        if match is not Match.NONE and "" not in matched.get("path_params", {}).values():
            return True
    return False
