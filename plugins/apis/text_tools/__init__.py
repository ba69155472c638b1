"""Tokens and prompts over HTTP, with the names of vLLM and llama.cpp: POST /tokenize and others."""

from collections.abc import Iterable

from ostro import Route, hookimpl


@hookimpl
def ostro_routes() -> Iterable[Route]:
    from ostro.plugins.apis.text_tools.routes import ROUTES  # imports the server

    return ROUTES
