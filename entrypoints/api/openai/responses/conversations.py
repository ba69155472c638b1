"""Conversations: lists of items that responses continue."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated

import msgspec
from msgspec.structs import replace

from ostro.core.errors import DocumentNotFound, RequestError
from ostro.core.store import new_id
from ostro.entrypoints.api.openai.responses.items import (
    DIGITS,
    Item,
    ItemListRequest,
    ItemPage,
    id_of,
    stored_items,
)
from ostro.entrypoints.api.openai.responses.response import Response
from ostro.entrypoints.operations.access.caller import ANYONE, Caller
from ostro.entrypoints.operations.documents.metadata import Metadata, MetadataRequest
from ostro.entrypoints.operations.documents.state import PAGE_BYTES, Page, State, not_found

KIND, PREFIX = "conversation", "conv_"
MAX_ITEMS = 20
"""Limit on the items that one request adds, as at OpenAI."""
PAGE = 1000
"""Items that are read at a time."""
Items = Annotated[list[Item], msgspec.Meta(max_length=MAX_ITEMS)]
RawItems = Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MAX_ITEMS)]


class ConversationRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A conversation to create, with its first items."""

    items: Items | None = None
    metadata: Metadata | None = None


class ConversationBody(ConversationRequest, kw_only=True, forbid_unknown_fields=True):
    """The JSON of a `ConversationRequest`, before its items are decoded."""

    items: RawItems | None = None  # type: ignore[assignment]


class ItemsRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Items to add to a conversation."""

    items: Items


class ItemsBody(ItemsRequest, kw_only=True, forbid_unknown_fields=True):
    """The JSON of an `ItemsRequest`, before its items are decoded."""

    items: RawItems  # type: ignore[assignment]


class Conversation(msgspec.Struct, kw_only=True):
    """A conversation; `created` is in seconds since 1970."""

    id: str
    created: int
    metadata: Mapping[str, str]


class StoredItem(msgspec.Struct, kw_only=True):
    """An item of a conversation."""

    item: Item


class Conversations:
    """The conversations of callers. Methods raise as `State`; a caller finds its own ones only.

    The document of an item has the digits of the item's id: so documents sort by creation,
    whatever prefix the id has.
    """

    def __init__(self, state: State) -> None:
        self.state = state

    async def create(self, request: ConversationRequest, caller: Caller = ANYONE) -> Conversation:
        """Create a conversation."""
        items = stored_items(request.items or [], "items")
        made = Conversation(
            id=new_id(PREFIX), created=int(time.time()), metadata=request.metadata or {}
        )
        await self.require_room(1, items, caller)
        await self.state.put(caller.name, KIND, made.id, made)
        await self.put(made.id, items, caller)
        return made

    async def get(self, id: str, caller: Caller = ANYONE) -> Conversation:
        """Return a conversation."""
        return (await self.state.get(caller.name, KIND, id, Conversation)).value

    async def update(
        self, id: str, request: MetadataRequest, caller: Caller = ANYONE
    ) -> Conversation:
        """Replace the metadata of a conversation."""
        return await self.state.change(
            caller.name,
            KIND,
            id,
            Conversation,
            lambda old: replace(old, metadata=request.metadata or {}),
        )

    async def delete(self, id: str, caller: Caller = ANYONE) -> None:
        """Delete a conversation with its items. Responses of it stay."""
        if not await self.state.delete(caller.name, KIND, id):
            raise not_found(id)
        await self.state.delete(caller.name, item_kind(id))

    async def add(self, id: str, request: ItemsRequest, caller: Caller = ANYONE) -> list[Item]:
        """Add items to a conversation, and return them with their ids."""
        items = stored_items(request.items, "items")
        await self.get(id, caller)
        await self.require_room(0, items, caller)
        await self.put(id, items, caller)
        return items

    async def add_turn(self, response: Response, items: Sequence[Item], caller: Caller) -> None:
        """Add the input and the output of a response to its conversation, unless it failed.

        A conversation that was deleted meanwhile stays deleted.
        """
        if response.conversation is None or response.status not in ("completed", "incomplete"):
            return
        with suppress(DocumentNotFound):
            await self.get(response.conversation.id, caller)
            await self.put(response.conversation.id, [*items, *response.output], caller)

    async def remove_turn(self, response: Response, items: Sequence[Item], caller: Caller) -> None:
        """Remove what `add_turn` has added."""
        if response.conversation is not None:
            for item in [*items, *response.output]:
                kind = item_kind(response.conversation.id)
                await self.state.delete(caller.name, kind, id_of(item)[-DIGITS:])

    async def require_room(self, documents: int, items: Sequence[Item], caller: Caller) -> None:
        """Raise an error if the caller may not store documents and items besides."""
        await self.state.require_room_for(caller.name, documents + len(items), items)

    async def put(self, id: str, items: Sequence[Item], caller: Caller) -> None:
        for item in items:
            name = id_of(item)[-DIGITS:]
            await self.state.put(caller.name, item_kind(id), name, StoredItem(item=item))

    async def parts(self, id: str, caller: Caller = ANYONE) -> AsyncGenerator[list[Item], None]:
        """Yield all items of a conversation in parts, of which the newest one is first.

        The request holds all of them; raises as `HeldDocuments.add`.
        """
        await self.get(id, caller)
        after, more = None, True
        while more:
            page = await self.page(id, caller, after=after, limit=PAGE)
            yield [each.value.item for each in reversed(page.items)]
            more, after = page.has_more, page.items[-1].document.id if page.items else None

    async def page(
        self, id: str, caller: Caller, *, after: str | None, limit: int, descending: bool = True
    ) -> Page[StoredItem]:
        """Return some items, which the request holds; fewer than `limit` if they are large."""
        return await self.state.list(
            caller.name,
            item_kind(id),
            StoredItem,
            after=after,
            limit=limit,
            descending=descending,
            max_bytes=PAGE_BYTES,
            count=self.state.held.add,
        )

    async def items(self, id: str, request: ItemListRequest, caller: Caller = ANYONE) -> ItemPage:
        """Return a page of items. Raises RequestError for an invalid cursor."""
        await self.get(id, caller)
        page = await self.page(
            id,
            caller,
            after=None if request.after is None else digits_of(request.after),
            limit=request.limit,
            descending=request.order == "desc",
        )
        return ItemPage([each.value.item for each in page.items], page.has_more)

    async def item(self, id: str, item: str, caller: Caller = ANYONE) -> Item:
        """Return an item of a conversation."""
        await self.get(id, caller)
        name, count = item[-DIGITS:], self.state.held.add
        found = await self.state.get(caller.name, item_kind(id), name, StoredItem, count=count)
        if found.value.item.id != item:
            raise not_found(item)
        return found.value.item

    async def delete_item(self, id: str, item: str, caller: Caller = ANYONE) -> Conversation:
        """Delete an item, and return the conversation."""
        await self.item(id, item, caller)
        await self.state.delete(caller.name, item_kind(id), item[-DIGITS:])
        return await self.get(id, caller)


def item_kind(id: str) -> str:
    """Return the kind of the items of a conversation."""
    return f"conversation_item/{id}"


def digits_of(id: str) -> str:
    """Return the cursor of an item. Raises RequestError for what is not an id."""
    digits = id[-DIGITS:]
    if not id.removesuffix(digits) or len(digits) < DIGITS:
        raise RequestError(f"{id!r:.80} is not an id of this list", param="after")
    return digits
