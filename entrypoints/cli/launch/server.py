"""The models of a running server, from `GET /v1/models`."""

from __future__ import annotations

from typing import Any

from ostro.core.env import API_KEY
from ostro.core.errors import ModelNotFound, UsageError, nearest


def find_model(url: str, name: str | None, key: str) -> tuple[str, int]:
    """The name and the context length of a model: of the first one if `name` is None.

    url: of the server, without /v1. Raises UsageError, or ModelNotFound for an unknown name.
    """
    models = {str(model["id"]): model for model in list_models(url, key)}
    chosen = next(iter(models), None) if name is None else name
    if chosen is None:
        raise ModelNotFound(f"the server at {url} has no model; start it with one: ostro serve REF")
    if chosen not in models:
        raise ModelNotFound(
            f"the server at {url} has no model {chosen!r}{nearest(chosen, models)}; "
            f"it has {', '.join(models)}"
        )
    context = models[chosen].get("max_model_len")
    if not isinstance(context, int):
        raise UsageError(
            f"the server at {url} does not state the context length of {chosen} (max_model_len); "
            "wait until the model is loaded, or name another one with --model"
        )
    return chosen, context


def list_models(url: str, key: str) -> list[dict[str, Any]]:
    """The models of a server. Raises UsageError if there is none that answers."""
    import httpx

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        response = httpx.get(f"{url}/v1/models", headers=headers, timeout=10)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UsageError(
            f"no server answers at {url} ({error or type(error).__name__}); start one with "
            "`ostro serve`, or name the URL of a running one with --url"
        ) from error
    if response.status_code in (401, 403):
        raise UsageError(
            f"the server at {url} refuses the API key; name one with --api-key or {API_KEY.name}"
        )
    try:
        return [model for model in response.raise_for_status().json()["data"] if model["id"]]
    except (httpx.HTTPStatusError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{url}/v1/models is not a list of models (status {response.status_code}); check --url"
        ) from error
