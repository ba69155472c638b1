"""OpenAI's routes for conversations and their items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeVar

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from ostro.core.errors import RequestError
from ostro.core.pipeline import parse
from ostro.core.records import Route
from ostro.entrypoints.http.body import MAX_BYTES, read_json, read_request
from ostro.entrypoints.http.context import caller_of, documents_of
from ostro.entrypoints.http.errors import respond
from ostro.entrypoints.http.query import parse_query
from ostro.entrypoints.http.responses import ItemList, item_list
from ostro.entrypoints.operations.conversations import (
    Conversation,
    ConversationBody,
    ConversationRequest,
    Conversations,
    ItemsBody,
    ItemsRequest,
    MetadataRequest,
)
from ostro.entrypoints.operations.operations import Operations
from ostro.entrypoints.operations.responses.items import (
    Item,
    ItemListRequest,
    ItemPage,
    ItemRequest,
    read_items,
)

B = TypeVar("B", ConversationBody, ItemsBody)


class ConversationObject(msgspec.Struct, kw_only=True):
    """A conversation; `created_at` is in seconds since 1970."""

    id: str
    created_at: int
    metadata: Mapping[str, str]
    object: Literal["conversation"] = "conversation"


class ConversationDeleted(msgspec.Struct, kw_only=True):
    """A conversation was deleted."""

    id: str
    deleted: Literal[True] = True
    object: Literal["conversation.deleted"] = "conversation.deleted"


async def create_conversation(request: Request) -> Response:
    """Create a conversation."""
    wanted = await read_items_body(request, ConversationBody)
    made = await conversations_of(request).create(wanted, caller_of(request))
    return respond(200, conversation_object(made))


async def get_conversation(request: Request) -> Response:
    """Describe a conversation."""
    found = await conversations_of(request).get(request.path_params["id"], caller_of(request))
    return respond(200, conversation_object(found))


async def update_conversation(request: Request) -> Response:
    """Replace the metadata of a conversation."""
    wanted = await read_metadata(request)
    changed = await conversations_of(request).update(
        request.path_params["id"], wanted, caller_of(request)
    )
    return respond(200, conversation_object(changed))


async def delete_conversation(request: Request) -> Response:
    """Delete a conversation with its items."""
    id = request.path_params["id"]
    await conversations_of(request).delete(id, caller_of(request))
    return respond(200, ConversationDeleted(id=id))


async def add_items(request: Request) -> Response:
    """Add items to a conversation."""
    parse_query(request, ItemRequest)
    wanted = await read_items_body(request, ItemsBody)
    id = request.path_params["id"]
    items = await conversations_of(request).add(id, wanted, caller_of(request))
    return respond(200, item_list(ItemPage(items, has_more=False)))


async def list_items(request: Request) -> Response:
    """List the items of a conversation, newest first."""
    wanted = parse_query(request, ItemListRequest)
    id = request.path_params["id"]
    page = await conversations_of(request).items(id, wanted, caller_of(request))
    return respond(200, item_list(page))


async def get_item(request: Request) -> Response:
    """Return an item of a conversation."""
    parse_query(request, ItemRequest)
    id, item = request.path_params["id"], request.path_params["item"]
    return respond(200, await conversations_of(request).item(id, item, caller_of(request)))


async def delete_item(request: Request) -> Response:
    """Delete an item of a conversation, and return the conversation."""
    id, item = request.path_params["id"], request.path_params["item"]
    left = await conversations_of(request).delete_item(id, item, caller_of(request))
    return respond(200, conversation_object(left))


def conversations_of(request: Request) -> Conversations:
    return documents_of(request).conversations


async def read_items_body(request: Request, kind: type[B]) -> B:
    """Return the request in a JSON body, with its items decoded. Raises as `read_request`."""
    documents_of(request).state.require()
    body = await read_request(request, kind, limit=MAX_BYTES)
    return body if body.items is None else replace(body, items=read_items(body.items, "items"))


async def read_metadata(request: Request) -> MetadataRequest:
    """Return the request for new metadata. Raises RequestError if they are missing."""
    body = await read_json(request)
    if "metadata" not in body:
        raise RequestError("the field metadata is missing", param="metadata")
    return parse(body, MetadataRequest)


def conversation_object(found: Conversation) -> ConversationObject:
    return ConversationObject(id=found.id, created_at=found.created, metadata=found.metadata)


def routes(operations: Operations) -> list[Route]:
    """Return the routes."""
    one, items = "/v1/conversations/{id}", "/v1/conversations/{id}/items"
    return [
        Route(
            name="POST /v1/conversations",
            error_statuses=(400, 503),
            endpoint=create_conversation,
            request=ConversationRequest,
            response=ConversationObject,
        ),
        Route(name=f"GET {one}", endpoint=get_conversation, response=ConversationObject),
        Route(
            name=f"POST {one}",
            endpoint=update_conversation,
            request=MetadataRequest,
            response=ConversationObject,
        ),
        Route(name=f"DELETE {one}", endpoint=delete_conversation, response=ConversationDeleted),
        Route(name=f"POST {items}", endpoint=add_items, request=ItemsRequest, response=ItemList),
        Route(name=f"GET {items}", endpoint=list_items, request=ItemListRequest, response=ItemList),
        Route(name=f"GET {items}/{{item}}", endpoint=get_item, request=ItemRequest, response=Item),
        Route(name=f"DELETE {items}/{{item}}", endpoint=delete_item, response=ConversationObject),
    ]
