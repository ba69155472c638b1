"""Tokens and prompts over HTTP, with the names of vLLM and llama.cpp: POST /tokenize and others."""

from collections.abc import Iterable
from typing import Any

from ostro import Route, hookimpl


@hookimpl
def ostro_routes(server: Any) -> Iterable[Route]:
    from ostro.plugins.apis.text_tools.routes import routes

    return routes(server)
