"""OpenAI's routes for stored chat completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ostro.core.errors import RequestError
from ostro.core.routes import RequestBody, Route
from ostro.entrypoints.api.openai.bodies import ChatBody
from ostro.entrypoints.api.openai.chat_store import (
    ChatListRequest,
    StoredChat,
    StoredChats,
    StoredCompletion,
)
from ostro.entrypoints.api.openai.pages import ListPage, make_page
from ostro.entrypoints.api.openai.types import ChatCompletion
from ostro.entrypoints.operations.access.caller import Caller
from ostro.entrypoints.operations.documents.metadata import MetadataRequest
from ostro.entrypoints.operations.operations import Operations
from ostro.entrypoints.operations.requests.decoding import MAX_BYTES


class MessageListRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of a list of messages, as of `ChatListRequest`."""

    after: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "asc"


class StoredMessage(msgspec.Struct, kw_only=True):
    """A message of a stored completion's request; `content_parts` if its content has parts."""

    id: str
    role: str
    content: str | None
    refusal: str | None = None
    content_parts: list[dict[str, Any]] | UnsetType = UNSET
    name: str | UnsetType = UNSET
    tool_calls: list[dict[str, Any]] | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET


class ChatCompletionList(ListPage, kw_only=True):
    """A page of completions. `last_id` is the cursor of the next page."""

    data: list[ChatCompletion]


class StoredMessageList(ListPage, kw_only=True):
    """A page of messages."""

    data: list[StoredMessage]


class ChatCompletionDeleted(msgspec.Struct, kw_only=True):
    """A completion was deleted."""

    id: str
    deleted: Literal[True] = True
    object: Literal["chat.completion.deleted"] = "chat.completion.deleted"


async def list_chats(
    operations: Operations, caller: Caller, request: ChatListRequest
) -> ChatCompletionList:
    """List stored chat completions, oldest first."""
    page = await operations.documents.get(StoredChats).list(request, caller)
    data = [completion_of(chat) for chat in page.chats]
    return make_page(ChatCompletionList, data, page.has_more)


async def get_chat(
    operations: Operations, caller: Caller, request: None, *, id: str
) -> ChatCompletion:
    """Return a stored chat completion."""
    return completion_of(await operations.documents.get(StoredChats).completion(id, caller))


async def update_chat(
    operations: Operations, caller: Caller, request: MetadataRequest, *, id: str
) -> ChatCompletion:
    """Replace the metadata of a stored chat completion."""
    metadata = request.metadata or {}
    return completion_of(await operations.documents.get(StoredChats).update(id, metadata, caller))


async def delete_chat(
    operations: Operations, caller: Caller, request: None, *, id: str
) -> ChatCompletionDeleted:
    """Delete a stored chat completion."""
    await operations.documents.get(StoredChats).delete(id, caller)
    return ChatCompletionDeleted(id=id)


async def list_messages(
    operations: Operations, caller: Caller, request: MessageListRequest, *, id: str
) -> StoredMessageList:
    """List the messages of a stored chat completion's request."""
    chat = await operations.documents.get(StoredChats).get(id, caller)
    messages = [message_of(chat, i) for i in range(len(chat.messages))]
    if request.order == "desc":
        messages.reverse()
    if request.after is not None:
        ids = [message.id for message in messages]
        if request.after not in ids:
            raise RequestError(f"{request.after!r:.80} is not an id of this list", param="after")
        messages = messages[ids.index(request.after) + 1 :]
    data, more = messages[: request.limit], len(messages) > request.limit
    return make_page(StoredMessageList, data, more)


def stored_chat(body: ChatBody, completion: ChatCompletion) -> StoredChat:
    """Return the document of a completion. A request may state one text as its messages."""
    messages = msgspec.to_builtins(body)["messages"]
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return StoredChat(
        id=completion.id,
        model=completion.model,
        metadata=body.metadata or {},
        messages=messages,
        completion=msgspec.Raw(msgspec.json.encode(completion)),
    )


def completion_of(chat: StoredCompletion) -> ChatCompletion:
    """Return the completion with its present metadata."""
    found = msgspec.json.decode(chat.completion, type=ChatCompletion)
    found.metadata = dict(chat.metadata)
    return found


def message_of(chat: StoredChat, index: int) -> StoredMessage:
    message = chat.messages[index]
    content = message.get("content")
    parts = content if isinstance(content, list) else UNSET
    names = ("refusal", "name", "tool_calls", "tool_call_id")
    given = {name: message[name] for name in names if message.get(name) is not None}
    return StoredMessage(
        id=f"{chat.id}-{index}",
        role=message["role"],
        content=content if isinstance(content, str) else None,
        content_parts=parts,
        **given,
    )


ROUTES: tuple[Route, ...] = (
    Route(
        name="GET /v1/chat/completions",
        error_statuses=(400, 503),
        handler=list_chats,
        request=ChatListRequest,
        response=ChatCompletionList,
    ),
    Route(name="GET /v1/chat/completions/{id}", handler=get_chat, response=ChatCompletion),
    Route(
        name="POST /v1/chat/completions/{id}",
        handler=update_chat,
        request=MetadataRequest,
        body=RequestBody(max_bytes=MAX_BYTES),
        response=ChatCompletion,
        cancel_on_disconnect=False,
    ),
    Route(
        name="DELETE /v1/chat/completions/{id}",
        handler=delete_chat,
        response=ChatCompletionDeleted,
    ),
    Route(
        name="GET /v1/chat/completions/{id}/messages",
        handler=list_messages,
        request=MessageListRequest,
        response=StoredMessageList,
    ),
)
