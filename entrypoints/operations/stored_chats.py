"""Stored chat completions: those whose request states `store`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import replace

from ostro.entrypoints.operations.caller import ANYONE, Caller
from ostro.entrypoints.operations.metadata import Metadata
from ostro.entrypoints.operations.state import State, not_found

KIND, PREFIX = "chat_completion", "chatcmpl-"
MAX_PAGE = 100
"""Limit on the completions of a page."""


class ChatListRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of a list of completions: those of a model, with these metadata.

    `after` is the id of the last completion of the page before.
    """

    after: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE)] = 20
    order: Literal["asc", "desc"] = "asc"
    model: str | None = None
    metadata: Metadata | None = None


class StoredChat(msgspec.Struct, kw_only=True):
    """A completion: the messages of its request, and the JSON of its response."""

    id: str
    model: str
    metadata: Mapping[str, str]
    messages: list[dict[str, Any]]
    completion: msgspec.Raw


@dataclass(frozen=True)
class ChatPage:
    """A part of a list of completions, and whether more follow."""

    chats: list[StoredChat]
    has_more: bool


class StoredChats:
    """The stored completions of callers. Methods raise as `State`; a caller finds its own only."""

    def __init__(self, state: State) -> None:
        self.state = state

    async def add(self, chat: StoredChat, caller: Caller = ANYONE) -> None:
        """Store a completion."""
        await self.state.put(caller.name, KIND, chat.id, chat)

    async def get(self, id: str, caller: Caller = ANYONE) -> StoredChat:
        """Return a completion."""
        return (await self.state.get(caller.name, KIND, id, StoredChat)).value

    async def list(self, request: ChatListRequest, caller: Caller = ANYONE) -> ChatPage:
        """Return a page of completions. Raises RequestError for an invalid cursor."""
        wanted = (request.metadata or {}).items()
        found: list[StoredChat] = []
        after, more = request.after, True
        while more and len(found) <= request.limit:
            page = await self.state.list(
                caller.name,
                KIND,
                StoredChat,
                after=after,
                limit=MAX_PAGE,
                descending=request.order == "desc",
            )
            chats = [each.value for each in page.items]
            found += [
                chat
                for chat in chats
                if request.model in (None, chat.model) and wanted <= chat.metadata.items()
            ]
            more, after = page.has_more, chats[-1].id if chats else after
        return ChatPage(found[: request.limit], len(found) > request.limit)

    async def update(
        self, id: str, metadata: Mapping[str, str], caller: Caller = ANYONE
    ) -> StoredChat:
        """Replace the metadata of a completion."""
        return await self.state.change(
            caller.name, KIND, id, StoredChat, lambda old: replace(old, metadata=metadata)
        )

    async def delete(self, id: str, caller: Caller = ANYONE) -> None:
        """Delete a completion."""
        if not await self.state.delete(caller.name, KIND, id):
            raise not_found(id)
