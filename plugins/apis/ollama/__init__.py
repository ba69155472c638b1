"""Ollama's HTTP API: chat, generate, embed, and the lists of models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ostro import Route, hookimpl

if TYPE_CHECKING:
    from ostro.http import Operations


@hookimpl
def ostro_routes(server: Operations) -> Iterable[Route]:
    from ostro.plugins.apis.ollama.routes import routes

    return routes()
