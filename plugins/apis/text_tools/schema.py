"""Requests and responses of the routes, and their conversion to those of operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from ostro.errors import RequestError
from ostro.http import ChatBody, ModelBody, TokenizeRequest, Tokens, decode
from ostro.pipelines import ChatRequest

CHAT = (
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template_kwargs",
)
"""Fields of a conversation."""
TEXT = ("add_special_tokens", "add_special", "parse_special")
"""Fields of a text, besides its own."""


class TokenizeBody(ModelBody, kw_only=True):
    """A text in `prompt` (vLLM) or `content` (llama.cpp), or the messages of a chat.

    `add_special_tokens`, or `add_special`, adds the tokens that the model expects around a text:
    by default for `prompt`. `parse_special`, which is the default, converts control tokens in the
    text. `return_token_strs` adds the entries of the vocabulary, `with_pieces` replaces each
    id with the id and its text.
    """

    unsupported: ClassVar[Mapping[str, str]] = {
        "chat_template": "a chat template in a request",
        "mm_processor_kwargs": "a setting of media",
    }

    prompt: str | None = None
    content: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    return_token_strs: bool = False
    with_pieces: bool = False


class TokenPiece(msgspec.Struct, kw_only=True):
    """A token and its text; its bytes if they are not valid UTF-8."""

    id: int
    piece: str | list[int]


class TokenizeResponse(msgspec.Struct, kw_only=True):
    """Token ids, their number, and the context length of the model in tokens."""

    count: int
    max_model_len: int
    tokens: list[int | TokenPiece]
    token_strs: list[str] | None = None


class PromptResponse(msgspec.Struct, kw_only=True):
    """A text. `content` is llama.cpp's name of it, for token ids."""

    prompt: str
    content: str | UnsetType = UNSET


def has_messages(body: TokenizeBody) -> bool:
    """Return whether a request has messages.

    Raises RequestError unless it has either messages or one text, and for fields of the other.
    """
    given = [name for name in ("prompt", "content", "messages") if getattr(body, name) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise RequestError(
            f"expected one of prompt, content and messages, got {found}",
            param=given[0] if given else "prompt",
        )
    chat = given == ["messages"]
    if chat and (wrong := [name for name in TEXT if getattr(body, name)]):
        raise RequestError(
            f"{wrong[0]} is for texts; the chat template writes the special tokens of messages",
            param=wrong[0],
        )
    if not chat and (wrong := [name for name in CHAT if getattr(body, name) is not None]):
        raise RequestError(f"{wrong[0]} is for messages, not for texts", param=wrong[0])
    return chat


def text_of(body: TokenizeBody) -> TokenizeRequest:
    """Return a text for the operation."""
    vllm = body.prompt is not None
    wanted = (body.add_special_tokens, body.add_special)
    return TokenizeRequest(
        text=body.prompt or body.content or "",
        add_special_tokens=next((each for each in wanted if each is not None), vllm),
        parse_special=body.parse_special is not False,
        **body.target,
    )


def chat_of(body: TokenizeBody) -> ChatRequest:
    """Return a conversation for the operation. Raises RequestError for malformed messages."""
    fields = {name: getattr(body, name) for name in (*body.target, *CHAT)}
    return decode(msgspec.json.encode(fields), ChatBody).to_request()


def pieces_of(found: Tokens) -> list[int | TokenPiece]:
    """Return the ids with their texts."""
    return [TokenPiece(id=token, piece=text_or_bytes(found, token)) for token in found.tokens]


def text_or_bytes(found: Tokens, token: int) -> str | list[int]:
    """Return the text of a token, or its bytes if they are not valid UTF-8."""
    piece = found.tokenizer.piece(token)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
