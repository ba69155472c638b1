"""Anthropic's API: messages and their streams, message batches, token counts, list of models."""

from collections.abc import Iterable

from ostro import Route, hookimpl


@hookimpl
def ostro_routes() -> Iterable[Route]:
    from ostro.plugins.apis.anthropic.routes import ROUTES  # imports the server

    return ROUTES
