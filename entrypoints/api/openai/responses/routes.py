"""OpenAI's routes for responses."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Literal, NoReturn

import msgspec

from ostro.core.errors import RequestError, Unsupported
from ostro.core.routes import RequestBody, Route
from ostro.entrypoints.api.openai.pages import ListPage, make_page
from ostro.entrypoints.api.openai.responses.events import AnyEvent, ResponseEvent
from ostro.entrypoints.api.openai.responses.items import (
    Includable,
    Item,
    ItemListRequest,
    ItemPage,
)
from ostro.entrypoints.api.openai.responses.request import (
    InputTokensBody,
    InputTokensRequest,
    ResponseBody,
    ResponseRequest,
    check_support,
    read_count_request,
    read_response_request,
)
from ostro.entrypoints.api.openai.responses.response import Response
from ostro.entrypoints.api.openai.responses.responses import Responses
from ostro.entrypoints.api.openai.tokens import InputTokens
from ostro.entrypoints.operations.access.caller import Caller
from ostro.entrypoints.operations.operations import Operations
from ostro.entrypoints.operations.requests.decoding import convert_aside
from ostro.entrypoints.operations.requests.event_formats import NAMED_EVENTS

PATH = "/v1/responses"


class RetrieveRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How to return a response. With `stream`, the events above the number `starting_after`."""

    stream: bool = False
    starting_after: int | None = None
    include: list[Includable] | None = None
    include_obfuscation: Literal[False] = False


class ItemList(ListPage, kw_only=True):
    """A page of items."""

    data: list[Item]


class ResponseDeleted(msgspec.Struct, kw_only=True):
    """A response was deleted."""

    id: str
    deleted: Literal[True] = True
    object: Literal["response"] = "response"


async def create_response(
    operations: Operations, caller: Caller, body: ResponseBody
) -> Response | AsyncGenerator[ResponseEvent, None]:
    """Answer an input."""
    responses = operations.documents.get(Responses)
    request = await convert_aside(read_response_request, body)
    if request.stream:
        return responses.stream(request, caller)
    return await responses.create(request, caller)


async def get_response(
    operations: Operations, caller: Caller, request: RetrieveRequest, *, id: str
) -> Response | AsyncGenerator[ResponseEvent, None]:
    """Return a stored response, or its events."""
    responses = operations.documents.get(Responses)
    if request.stream:
        after = -1 if request.starting_after is None else request.starting_after
        return responses.replay(id, after, caller)
    if request.starting_after is not None:
        raise RequestError("starting_after needs stream", param="starting_after")
    return await responses.get(id, caller)


async def delete_response(
    operations: Operations, caller: Caller, request: None, *, id: str
) -> ResponseDeleted:
    """Delete a response with its input and its events."""
    await operations.documents.get(Responses).delete(id, caller)
    return ResponseDeleted(id=id)


async def cancel_response(
    operations: Operations, caller: Caller, request: None, *, id: str
) -> Response:
    """Cancel a response in the background."""
    return await operations.documents.get(Responses).cancel(id, caller)


async def list_input_items(
    operations: Operations, caller: Caller, request: ItemListRequest, *, id: str
) -> ItemList:
    """List the items of a response's own input, newest first."""
    return item_list(await operations.documents.get(Responses).input_items(id, request, caller))


async def count_input_tokens(
    operations: Operations, caller: Caller, body: InputTokensBody
) -> InputTokens:
    """Count the tokens of an input."""
    request = await convert_aside(read_count_request, body)
    count = await operations.documents.get(Responses).count(request, caller)
    return InputTokens(input_tokens=count)


async def compact_response(operations: Operations, caller: Caller, request: None) -> NoReturn:
    """Reject compaction, which only the hosted product has."""
    raise Unsupported("compact is not supported; use truncation: auto")


def item_list(page: ItemPage) -> ItemList:
    """Return a page of items as JSON. The ids of an empty page are empty."""
    return make_page(ItemList, page.items, page.has_more, empty="")


ROUTES: tuple[Route, ...] = (
    Route(
        name=f"POST {PATH}",
        error_statuses=(400, 404, 503, 507),
        handler=create_response,
        request=ResponseRequest,
        body=RequestBody(kind=ResponseBody, check=check_support),
        response=Response,
        events=AnyEvent,
        event_format=NAMED_EVENTS,
    ),
    Route(
        name=f"POST {PATH}/input_tokens",
        handler=count_input_tokens,
        request=InputTokensRequest,
        body=RequestBody(kind=InputTokensBody, check=check_support),
        response=InputTokens,
    ),
    Route(name=f"POST {PATH}/compact", handler=compact_response, error_statuses=(400,)),
    Route(
        name=f"GET {PATH}/{{id}}",
        handler=get_response,
        request=RetrieveRequest,
        response=Response,
        events=AnyEvent,
        event_format=NAMED_EVENTS,
    ),
    Route(
        name=f"DELETE {PATH}/{{id}}",
        handler=delete_response,
        response=ResponseDeleted,
    ),
    Route(
        name=f"POST {PATH}/{{id}}/cancel",
        handler=cancel_response,
        response=Response,
        cancel_on_disconnect=False,
    ),
    Route(
        name=f"GET {PATH}/{{id}}/input_items",
        handler=list_input_items,
        request=ItemListRequest,
        response=ItemList,
    ),
)
