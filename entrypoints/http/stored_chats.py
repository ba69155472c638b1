"""OpenAI's routes for stored chat completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from ostro.core.errors import RequestError
from ostro.core.pipeline import TextRequest
from ostro.core.records import Route
from ostro.entrypoints.http.context import caller_of, documents_of
from ostro.entrypoints.http.conversations import read_metadata
from ostro.entrypoints.http.errors import respond
from ostro.entrypoints.http.openai_types import ChatCompletion
from ostro.entrypoints.http.pages import ListPage, make_page
from ostro.entrypoints.http.query import parse_query
from ostro.entrypoints.operations.conversations import MetadataRequest
from ostro.entrypoints.operations.operations import Operations
from ostro.entrypoints.operations.stored_chats import ChatListRequest, StoredChat

PATH = "/v1/chat/completions"


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


async def list_chats(request: Request) -> Response:
    """List stored chat completions, oldest first."""
    wanted = parse_query(request, ChatListRequest)
    page = await documents_of(request).chats.list(wanted, caller_of(request))
    data = [completion_of(chat) for chat in page.chats]
    return respond(200, make_page(ChatCompletionList, data, page.has_more))


async def get_chat(request: Request) -> Response:
    """Return a stored chat completion."""
    chats = documents_of(request).chats
    return respond(
        200, completion_of(await chats.get(request.path_params["id"], caller_of(request)))
    )


async def update_chat(request: Request) -> Response:
    """Replace the metadata of a stored chat completion."""
    metadata = (await read_metadata(request)).metadata or {}
    chats, id = documents_of(request).chats, request.path_params["id"]
    return respond(200, completion_of(await chats.update(id, metadata, caller_of(request))))


async def delete_chat(request: Request) -> Response:
    """Delete a stored chat completion."""
    id = request.path_params["id"]
    await documents_of(request).chats.delete(id, caller_of(request))
    return respond(200, ChatCompletionDeleted(id=id))


async def list_messages(request: Request) -> Response:
    """List the messages of a stored chat completion's request."""
    wanted = parse_query(request, MessageListRequest)
    chat = await documents_of(request).chats.get(request.path_params["id"], caller_of(request))
    found = [message_of(chat, i) for i in range(len(chat.messages))]
    if wanted.order == "desc":
        found.reverse()
    if wanted.after is not None:
        ids = [message.id for message in found]
        if wanted.after not in ids:
            raise RequestError(f"{wanted.after!r:.80} is not an id of this list", param="after")
        found = found[ids.index(wanted.after) + 1 :]
    data, more = found[: wanted.limit], len(found) > wanted.limit
    return respond(200, make_page(StoredMessageList, data, more))


def stored_chat(body: TextRequest, completion: ChatCompletion) -> StoredChat:
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


def completion_of(chat: StoredChat) -> ChatCompletion:
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


def routes(operations: Operations) -> list[Route]:
    """Return the routes."""
    one = f"{PATH}/{{id}}"
    return [
        Route(
            name=f"GET {PATH}",
            error_statuses=(400, 503),
            endpoint=list_chats,
            request=ChatListRequest,
            response=ChatCompletionList,
        ),
        Route(name=f"GET {one}", endpoint=get_chat, response=ChatCompletion),
        Route(
            name=f"POST {one}",
            endpoint=update_chat,
            request=MetadataRequest,
            response=ChatCompletion,
        ),
        Route(name=f"DELETE {one}", endpoint=delete_chat, response=ChatCompletionDeleted),
        Route(
            name=f"GET {one}/messages",
            endpoint=list_messages,
            request=MessageListRequest,
            response=StoredMessageList,
        ),
    ]
