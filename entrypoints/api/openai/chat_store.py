"""Stored chat completions: those whose request states `store`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import replace

from ostro.entrypoints.operations.access.caller import ANYONE, Caller
from ostro.entrypoints.operations.documents.metadata import Metadata
from ostro.entrypoints.operations.documents.state import PAGE_BYTES, State, not_found

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


class StoredCompletion(msgspec.Struct, kw_only=True):
    """A completion: the JSON of a response."""

    id: str
    model: str
    metadata: Mapping[str, str]
    completion: msgspec.Raw

    def matches(self, request: ChatListRequest) -> bool:
        """Whether it belongs into a list."""
        wanted = (request.metadata or {}).items()
        return request.model in (None, self.model) and wanted <= self.metadata.items()


class StoredChat(StoredCompletion, kw_only=True):
    """A completion with the messages of its request."""

    messages: list[dict[str, Any]]


@dataclass(frozen=True)
class ChatPage:
    """A part of a list of completions, and whether more follow."""

    chats: list[StoredCompletion]
    has_more: bool


class StoredChats:
    """The stored completions of callers. Methods raise as `State`; a caller finds its own only."""

    def __init__(self, state: State) -> None:
        self.state = state

    async def add(self, chat: StoredChat, caller: Caller = ANYONE) -> None:
        """Store a completion."""
        await self.state.put(caller.name, KIND, chat.id, chat)

    async def get(self, id: str, caller: Caller = ANYONE) -> StoredChat:
        """Return a completion with its messages."""
        count = self.state.held.add
        return (await self.state.get(caller.name, KIND, id, StoredChat, count=count)).value

    async def completion(self, id: str, caller: Caller = ANYONE) -> StoredCompletion:
        """Return a completion."""
        return (await self.state.get(caller.name, KIND, id, StoredCompletion)).value

    async def list(self, request: ChatListRequest, caller: Caller = ANYONE) -> ChatPage:
        """Return a page of completions, fewer than the limit if they are large.

        Raises RequestError for an invalid cursor.
        """
        chats, after, more, nbytes = list[StoredCompletion](), request.after, True, 0
        while more:
            page = await self.state.list(
                caller.name,
                KIND,
                StoredCompletion,
                after=after,
                limit=MAX_PAGE,
                descending=request.order == "desc",
                max_bytes=PAGE_BYTES,
            )
            for item in page.items:
                if not item.value.matches(request):
                    continue
                if chats and (len(chats) == request.limit or nbytes > PAGE_BYTES):
                    return ChatPage(chats, has_more=True)
                completion = item.value.completion.copy()  # not a part of the document's bytes
                size = memoryview(completion).nbytes
                self.state.held.add(size)
                nbytes += size
                chats.append(replace(item.value, completion=completion))
            more, after = page.has_more, page.items[-1].document.id if page.items else after
        return ChatPage(chats, has_more=False)

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
