"""The route `POST /completion` of llama.cpp's server."""

from collections.abc import Iterable
from typing import Any

from ostro import Route, hookimpl


@hookimpl
def ostro_routes(server: Any) -> Iterable[Route]:
    from ostro_api_llamacpp.completion import ROUTE  # imports the server

    yield ROUTE
