"""OpenAI's routes for responses."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from ostro.core.errors import RequestError, Unsupported
from ostro.core.records import Route
from ostro.entrypoints.http.body import read_request
from ostro.entrypoints.http.context import caller_of, documents_of
from ostro.entrypoints.http.errors import respond
from ostro.entrypoints.http.pages import ListPage, make_page
from ostro.entrypoints.http.query import parse_query
from ostro.entrypoints.http.stream import EventStream, unless_disconnected
from ostro.entrypoints.http.tokens import InputTokens
from ostro.entrypoints.operations.operations import Operations
from ostro.entrypoints.operations.responses.events import AnyEvent, ResponseEvent, name_of
from ostro.entrypoints.operations.responses.items import Item, ItemListRequest, ItemPage
from ostro.entrypoints.operations.responses.request import (
    InputTokensBody,
    InputTokensRequest,
    ResponseBody,
    ResponseRequest,
    check_support,
    read_count_request,
    read_response_request,
)
from ostro.entrypoints.operations.responses.response import Response


class RetrieveRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How to return a response. With `stream`, the events above the number `starting_after`."""

    stream: bool = False
    starting_after: int | None = None
    include: list[Literal["message.output_text.logprobs"]] | None = None
    include_obfuscation: Literal[False] = False


class ItemList(ListPage, kw_only=True):
    """A page of items."""

    data: list[Item]


class ResponseDeleted(msgspec.Struct, kw_only=True):
    """A response was deleted."""

    id: str
    deleted: Literal[True] = True
    object: Literal["response"] = "response"


async def create_response(request: Request) -> HttpResponse:
    """Answer an input."""
    body = await read_request(request, ResponseBody, check=check_support)
    wanted = read_response_request(body)
    responses, caller = documents_of(request).responses, caller_of(request)
    if wanted.stream:
        return EventStream(encode(responses.stream(wanted, caller)))
    return respond(200, await unless_disconnected(request, responses.create(wanted, caller)))


async def get_response(request: Request) -> HttpResponse:
    """Return a stored response, or its events."""
    wanted = parse_query(request, RetrieveRequest)
    id, caller = request.path_params["id"], caller_of(request)
    responses = documents_of(request).responses
    if wanted.stream:
        after = -1 if wanted.starting_after is None else wanted.starting_after
        return EventStream(encode(responses.replay(id, after, caller)))
    if wanted.starting_after is not None:
        raise RequestError("starting_after needs stream", param="starting_after")
    return respond(200, await responses.get(id, caller))


async def delete_response(request: Request) -> HttpResponse:
    """Delete a response with its input and its events."""
    id = request.path_params["id"]
    await documents_of(request).responses.delete(id, caller_of(request))
    return respond(200, ResponseDeleted(id=id))


async def cancel_response(request: Request) -> HttpResponse:
    """Cancel a response in the background."""
    responses = documents_of(request).responses
    return respond(200, await responses.cancel(request.path_params["id"], caller_of(request)))


async def list_input_items(request: Request) -> HttpResponse:
    """List the items of a response's own input, newest first."""
    wanted = parse_query(request, ItemListRequest)
    responses = documents_of(request).responses
    page = await responses.input_items(request.path_params["id"], wanted, caller_of(request))
    return respond(200, item_list(page))


async def count_input_tokens(request: Request) -> HttpResponse:
    """Count the tokens of an input."""
    body = await read_request(request, InputTokensBody, check=check_support)
    wanted = read_count_request(body)
    count = await documents_of(request).responses.count(wanted, caller_of(request))
    return respond(200, InputTokens(input_tokens=count))


async def compact_response(request: Request) -> HttpResponse:
    """Reject compaction, which only the hosted product has."""
    raise Unsupported("compact is not supported; use truncation: auto")


def item_list(page: ItemPage) -> ItemList:
    """Return a page of items as JSON. The ids of an empty page are empty."""
    return make_page(ItemList, page.items, page.has_more, empty="")


async def encode(events: AsyncGenerator[ResponseEvent, None]) -> AsyncGenerator[bytes, None]:
    """Yield events as server-sent events with names."""
    try:
        async for event in events:
            name = name_of(event).encode()
            yield b"event: " + name + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"
    finally:
        await events.aclose()


def routes(operations: Operations) -> list[Route]:
    """Return the routes."""
    return [
        Route(
            name="POST /v1/responses",
            endpoint=create_response,
            request=ResponseRequest,
            response=Response,
            events=AnyEvent,
        ),
        Route(
            name="POST /v1/responses/input_tokens",
            endpoint=count_input_tokens,
            request=InputTokensRequest,
            response=InputTokens,
        ),
        Route(name="POST /v1/responses/compact", endpoint=compact_response, error_statuses=(400,)),
        Route(
            name="GET /v1/responses/{id}",
            endpoint=get_response,
            request=RetrieveRequest,
            response=Response,
            events=AnyEvent,
        ),
        Route(name="DELETE /v1/responses/{id}", endpoint=delete_response, response=ResponseDeleted),
        Route(name="POST /v1/responses/{id}/cancel", endpoint=cancel_response, response=Response),
        Route(
            name="GET /v1/responses/{id}/input_items",
            endpoint=list_input_items,
            request=ItemListRequest,
            response=ItemList,
        ),
    ]
