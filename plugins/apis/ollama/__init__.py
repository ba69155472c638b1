"""Ollama's HTTP API: chat, generate, embed, and the lists of models."""

from collections.abc import Iterable

from ostro import Route, hookimpl


@hookimpl
def ostro_routes() -> Iterable[Route]:
    from ostro.plugins.apis.ollama.routes import ROUTES  # imports the server

    return ROUTES
