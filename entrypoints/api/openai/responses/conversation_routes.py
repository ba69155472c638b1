"""OpenAI's routes for conversations and their items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec.structs import replace

from ostro.core.routes import RequestBody, Route
from ostro.entrypoints.api.openai.responses.conversations import (
    Conversation,
    ConversationBody,
    ConversationRequest,
    Conversations,
    ItemsBody,
    ItemsRequest,
)
from ostro.entrypoints.api.openai.responses.items import (
    Item,
    ItemListRequest,
    ItemPage,
    ItemRequest,
    read_items,
)
from ostro.entrypoints.api.openai.responses.routes import ItemList, item_list
from ostro.entrypoints.operations.access.caller import Caller
from ostro.entrypoints.operations.documents.metadata import MetadataRequest
from ostro.entrypoints.operations.operations import Operations
from ostro.entrypoints.operations.requests.decoding import MAX_BYTES, convert_aside


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


async def create_conversation(
    operations: Operations, caller: Caller, body: ConversationBody
) -> ConversationObject:
    """Create a conversation."""
    if body.items is not None:
        body = replace(body, items=await convert_aside(read_items, body.items, "items"))
    created = await operations.documents.get(Conversations).create(body, caller)
    return conversation_object(created)


async def get_conversation(
    operations: Operations, caller: Caller, request: None, *, id: str
) -> ConversationObject:
    """Describe a conversation."""
    return conversation_object(await operations.documents.get(Conversations).get(id, caller))


async def update_conversation(
    operations: Operations, caller: Caller, request: MetadataRequest, *, id: str
) -> ConversationObject:
    """Replace the metadata of a conversation."""
    updated = await operations.documents.get(Conversations).update(id, request, caller)
    return conversation_object(updated)


async def delete_conversation(
    operations: Operations, caller: Caller, request: None, *, id: str
) -> ConversationDeleted:
    """Delete a conversation with its items."""
    await operations.documents.get(Conversations).delete(id, caller)
    return ConversationDeleted(id=id)


async def add_items(
    operations: Operations, caller: Caller, body: ItemsBody, *, id: str, query: ItemRequest
) -> ItemList:
    """Add items to a conversation."""
    body = replace(body, items=await convert_aside(read_items, body.items, "items"))
    items = await operations.documents.get(Conversations).add(id, body, caller)
    return item_list(ItemPage(items, has_more=False))


async def list_items(
    operations: Operations, caller: Caller, request: ItemListRequest, *, id: str
) -> ItemList:
    """List the items of a conversation, newest first."""
    return item_list(await operations.documents.get(Conversations).items(id, request, caller))


async def get_item(
    operations: Operations, caller: Caller, request: ItemRequest, *, id: str, item: str
) -> Item:
    """Return an item of a conversation."""
    return await operations.documents.get(Conversations).item(id, item, caller)


async def delete_item(
    operations: Operations, caller: Caller, request: None, *, id: str, item: str
) -> ConversationObject:
    """Delete an item of a conversation, and return the conversation."""
    left = await operations.documents.get(Conversations).delete_item(id, item, caller)
    return conversation_object(left)


def conversation_object(found: Conversation) -> ConversationObject:
    return ConversationObject(id=found.id, created_at=found.created, metadata=found.metadata)


ROUTES: tuple[Route, ...] = (
    Route(
        name="POST /v1/conversations",
        error_statuses=(400, 503, 507),
        handler=create_conversation,
        request=ConversationRequest,
        body=RequestBody(kind=ConversationBody, max_bytes=MAX_BYTES),
        requires=Operations.require_store,
        response=ConversationObject,
        cancel_on_disconnect=False,
    ),
    Route(name="GET /v1/conversations/{id}", handler=get_conversation, response=ConversationObject),
    Route(
        name="POST /v1/conversations/{id}",
        handler=update_conversation,
        request=MetadataRequest,
        body=RequestBody(max_bytes=MAX_BYTES),
        response=ConversationObject,
        cancel_on_disconnect=False,
    ),
    Route(
        name="DELETE /v1/conversations/{id}",
        handler=delete_conversation,
        response=ConversationDeleted,
    ),
    Route(
        name="POST /v1/conversations/{id}/items",
        error_statuses=(400, 404, 503, 507),
        handler=add_items,
        request=ItemsRequest,
        query=ItemRequest,
        body=RequestBody(kind=ItemsBody, max_bytes=MAX_BYTES),
        requires=Operations.require_store,
        response=ItemList,
        cancel_on_disconnect=False,
    ),
    Route(
        name="GET /v1/conversations/{id}/items",
        handler=list_items,
        request=ItemListRequest,
        response=ItemList,
    ),
    Route(
        name="GET /v1/conversations/{id}/items/{item}",
        handler=get_item,
        request=ItemRequest,
        response=Item,
    ),
    Route(
        name="DELETE /v1/conversations/{id}/items/{item}",
        handler=delete_item,
        response=ConversationObject,
    ),
)
