"""The path below which a proxy serves the server: `--root-path`."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Receive, Scope, Send

from ostro.core.errors import UsageError

ROOT_PATH = re.compile(r"(/[\w.~-]+)*", re.ASCII)


class RootPath:
    """Removes the root path from the paths of requests, and adds it to the base URL.

    A proxy may remove it as well; requests without it are accepted.
    """

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        """root_path: of the form of `parse_root_path`, not empty."""
        self.app, self.root_path = app, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            scope = {**scope, "app_root_path": self.root_path}  # Starlette's key for `base_url`
            if scope["path"].startswith(f"{self.root_path}/"):
                size = len(self.root_path)
                scope |= {"path": scope["path"][size:], "raw_path": scope["raw_path"][size:]}
        await self.app(scope, receive, send)


def parse_root_path(text: str) -> str:
    """Return a root path without a slash at its end. Raises UsageError if it is no path."""
    path = text.rstrip("/")
    if not ROOT_PATH.fullmatch(path):
        raise UsageError(
            f"--root-path {text!r:.80}: expected a path of letters and digits, such as /models"
        )
    return path
