"""Rerank as at Jina and Cohere, score, classify and pooling as in vLLM."""

from collections.abc import Iterable

from ostro import Route, hookimpl


@hookimpl
def ostro_routes() -> Iterable[Route]:
    from ostro.plugins.apis.ranking.routes import ROUTES  # imports the server

    return ROUTES
