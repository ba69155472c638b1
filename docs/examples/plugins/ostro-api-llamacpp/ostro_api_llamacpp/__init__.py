"""The route `POST /completion` of llama.cpp's server."""

from collections.abc import Iterable

from ostro import Route, hookimpl


@hookimpl
def ostro_routes() -> Iterable[Route]:
    from ostro_api_llamacpp.completion import ROUTES  # imports the server

    return ROUTES
