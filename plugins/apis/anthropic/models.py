"""The list of models in Anthropic's form."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from ostro.errors import RequestError
from ostro.http import ModelEntry, caller_of, operations_of, respond


class ModelListParams(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The query of a page: what follows `after_id`, or what precedes `before_id`."""

    after_id: str | None = None
    before_id: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 20
    lifecycle: list[Literal["active", "deprecated", "retired"]] | None = None


class AnthropicModel(msgspec.Struct, kw_only=True):
    """A model or an adapter. Both limits are the context length."""

    id: str
    type: Literal["model"] = "model"
    display_name: str
    created_at: str
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int | None
    max_tokens: int | None


class AnthropicModelPage(msgspec.Struct, kw_only=True):
    """A page of the models."""

    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


async def list_models(request: Request) -> Response:
    """List the models, followed by their adapters."""
    wanted = read_query(request)
    found = await operations_of(request).models(caller_of(request))
    active = wanted.lifecycle is None or "active" in wanted.lifecycle
    return respond(200, page(found if active else [], wanted))


async def get_model(request: Request) -> Response:
    """Describe a model or an adapter."""
    entry = operations_of(request).model(request.path_params["id"], caller_of(request))
    return respond(200, card(entry))


def read_query(request: Request) -> ModelListParams:
    """Return the parameters of the query string. Raises RequestError for invalid ones."""
    given = dict(request.query_params)
    lifecycle = [x for x in request.query_params.getlist("lifecycle") for x in x.split(",")]
    lifecycle += request.query_params.getlist("lifecycle[]")
    given.pop("lifecycle[]", None)
    try:
        listed = {"lifecycle": lifecycle} if lifecycle else {}
        return msgspec.convert({**given, **listed}, ModelListParams, strict=False)
    except msgspec.ValidationError as error:
        raise RequestError(f"the query is malformed: {error}") from None


def page(entries: Sequence[ModelEntry], wanted: ModelListParams) -> AnthropicModelPage:
    """Return a page. Raises RequestError for a cursor that is no model of the list."""
    ids = [entry.id for entry in entries]
    for name, cursor in (("after_id", wanted.after_id), ("before_id", wanted.before_id)):
        if cursor is not None and cursor not in ids:
            raise RequestError(f"{name}: {cursor!r:.100} is not a model", param=name)
    start = 0 if wanted.after_id is None else ids.index(wanted.after_id) + 1
    end = len(ids) if wanted.before_id is None else ids.index(wanted.before_id)
    found = entries[start:end]
    backward = wanted.before_id is not None
    shown = found[-wanted.limit :] if backward else found[: wanted.limit]
    data = [card(entry) for entry in shown]
    return AnthropicModelPage(
        data=data,
        has_more=len(shown) < len(found),
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
    )


def card(entry: ModelEntry) -> AnthropicModel:
    """Return a model in Anthropic's form."""
    return AnthropicModel(
        id=entry.id,
        display_name=entry.id,
        created_at=datetime.fromtimestamp(entry.created, UTC).isoformat().replace("+00:00", "Z"),
        max_input_tokens=entry.context,
        max_tokens=entry.context,
    )
