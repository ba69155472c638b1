"""The list of models in Anthropic's form."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ostro.errors import RequestError
from ostro.http import Caller, ModelEntry, Operations


class ModelListParams(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The query of a page: what follows `after_id`, or what precedes `before_id`."""

    after_id: str | None = None
    before_id: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 20
    lifecycle: list[Literal["active", "deprecated", "retired"]] | None = None


class ModelListQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The texts of `ModelListParams`; one of `lifecycle` may be a list with commas."""

    after_id: str | None = None
    before_id: str | None = None
    limit: str | None = None
    lifecycle: list[str] | None = None


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


async def list_models(
    operations: Operations, caller: Caller, query: ModelListQuery
) -> AnthropicModelPage:
    """List the models, followed by their adapters."""
    params = list_params(query)
    active = params.lifecycle is None or "active" in params.lifecycle
    entries = await operations.models(caller)
    return page(entries if active else [], params)


async def get_model(
    operations: Operations, caller: Caller, request: None, *, id: str
) -> AnthropicModel:
    """Describe a model or an adapter."""
    return card(operations.model(id, caller))


def list_params(query: ModelListQuery) -> ModelListParams:
    """Return the parameters in a query. Raises RequestError for invalid ones."""
    given = {k: v for k, v in msgspec.structs.asdict(query).items() if v is not None}
    if query.lifecycle is not None:
        given["lifecycle"] = [part for text in query.lifecycle for part in text.split(",")]
    try:
        return msgspec.convert(given, ModelListParams, strict=False)
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
