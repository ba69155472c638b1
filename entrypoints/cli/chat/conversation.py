"""The state of a chat, and the JSON file in which /save writes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict

import msgspec

from ostro.core.errors import UsageError

if TYPE_CHECKING:
    from ostro.core.messages.requests import Sampling

MAX_BYTES = 64 << 20
"""Limit on the size of a file that /load reads."""


class Message(TypedDict, total=False):
    """A chat message, as in OpenAI's API. Media parts name a file: {"type": "image", "image": F}"""

    role: Required[Literal["system", "developer", "user", "assistant", "tool"]]
    content: Required[str | list[str | dict[str, Any]] | None]
    reasoning_content: str
    tool_calls: list[Any]
    tool_call_id: str
    name: str


class Conversation(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The messages of a chat, and the settings of its next answer.

    `sampling` are arguments of `LocalModel.stream`. `adapters` are scales by name. `think` enables
    or disables reasoning; None is the template's default. `thinking_budget` limits its tokens.
    `parse_special` converts control tokens in text without a template. `model` is the name of the
    model, in a file only.
    """

    model: str | None = None
    system: str | None = None
    think: bool | None = None
    thinking_budget: int | None = None
    parse_special: bool = True
    sampling: dict[str, Any] = {}
    adapters: dict[str, float] = {}
    messages: list[Message] = []

    @property
    def prompt(self) -> list[Mapping[str, Any]]:
        """The system message, if there is one, and the messages."""
        system: list[Mapping[str, Any]] = []
        if self.system:
            system = [{"role": "system", "content": self.system}]
        return [*system, *self.messages]

    def last(self, role: str) -> int | None:
        """The index of the last message of a role, None if there is none."""
        found = (i for i, each in enumerate(self.messages) if each["role"] == role)
        return max(found, default=None)


def read_sampling(values: Mapping[str, Any], defaults: Mapping[str, Any] = {}) -> Sampling:
    """The sampling parameters of `Conversation.sampling`; `defaults` apply to the others.

    Values may be texts. Raises UsageError for an unknown name or a wrong type, RequestError for a
    value out of range.
    """
    from ostro.core.messages.requests import Sampling
    from ostro.entrypoints.python.requests import make_request

    request = make_request("", values)
    known = {*Sampling.__struct_fields__} & {*request.__struct_fields__}
    stated = {name: getattr(request, name) for name in values if name in known}
    fields = {**defaults, **{name: x for name, x in stated.items() if x is not None}}
    return Sampling(**{**fields, "stop": tuple(request.stop)}).checked()


def text_of(message: Message) -> str:
    """The text of a message, without media."""
    content = message["content"]
    if content is None or isinstance(content, str):
        return content or ""
    parts = [part if isinstance(part, str) else part.get("text", "") for part in content]
    return "\n".join(part for part in parts if part)


def media_of(message: Message) -> list[dict[str, Any]]:
    """The parts of a message that are not text."""
    content = message["content"]
    parts = content if isinstance(content, list) else []
    return [part for part in parts if isinstance(part, dict) and part.get("type") != "text"]


def user_message(text: str, attachments: list[dict[str, Any]]) -> Message:
    """A user message: its attachments, then its text. Without media its content is a string."""
    texts = [part["text"] for part in attachments if part["type"] == "text"]
    media: list[str | dict[str, Any]] = [part for part in attachments if part["type"] != "text"]
    joined = "\n\n".join([*texts, text])
    if not media:
        return {"role": "user", "content": joined}
    return {"role": "user", "content": [*media, {"type": "text", "text": joined}]}


def save(conversation: Conversation, file: Path) -> None:
    """Write a conversation as JSON. Only a file of an earlier /save is overwritten.

    Raises UsageError if the file is another one, or cannot be written.
    """
    if file.exists():
        try:
            load(file)
        except UsageError:
            raise UsageError(
                f"{file} exists and is not a saved conversation; name another file"
            ) from None
    data = msgspec.json.format(msgspec.json.encode(conversation))
    try:
        file.write_bytes(data + b"\n")
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from None


def load(file: Path) -> Conversation:
    """Read a conversation; only its `messages` are required.

    A system message at the beginning becomes `system`. Raises UsageError with the file and the
    field if it is malformed.
    """
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        message = getattr(error, "strerror", None) or error
        raise UsageError(f"{file!s:.200} cannot be read: {message}") from None
    if len(data) > MAX_BYTES:
        raise UsageError(f"{file} is larger than {MAX_BYTES >> 20} MiB")
    return parse(data, file)


def parse(data: bytes, file: Path) -> Conversation:
    """Parse the JSON of a conversation. Raises UsageError with the file and the field."""
    try:
        raw = msgspec.json.decode(data)
        if not isinstance(raw, dict) or "messages" not in raw:
            raise UsageError(f"{file} is not a saved conversation: it has no messages")
        found = msgspec.convert(raw, Conversation)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        field = where.strip("`").lstrip(".")
        raise UsageError(f"{file}: {field}: {what}" if field else f"{file}: {what}") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is not a saved conversation: {error}") from None
    if found.system is None and found.messages and found.messages[0]["role"] == "system":
        found.system = text_of(found.messages.pop(0))
    return found
