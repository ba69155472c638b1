"""Rerank as at Jina and Cohere, score, classify and pooling as in vLLM."""

from collections.abc import Iterable
from typing import Any

from ostro import Route, hookimpl


@hookimpl
def ostro_routes(server: Any) -> Iterable[Route]:
    from ostro.plugins.apis.ranking.routes import routes

    return routes()
