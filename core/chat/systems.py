"""System messages for templates that take one at most, or none behind the first turn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from ostro.core.chat.messages import TemplateFeatures, content_of, is_empty

ROLES = ("system", "developer")
"""The roles whose messages give instructions."""

BLOCK_START = "<system_message>\n"
BLOCK_END = "\n</system_message>"
"""What is before and behind a system message in the text of another turn."""

Arranged = Sequence[dict[str, Any]]
"""Messages in the form that a template expects."""


def is_system(message: dict[str, Any]) -> bool:
    """Whether a message gives instructions."""
    return message["role"] in ROLES


def leading(messages: Arranged) -> int:
    """The number of system messages before the first turn."""
    return sum(1 for _ in takewhile(is_system, messages))


def conversation(roles: Sequence[str]) -> list[dict[str, Any]]:
    """Messages of these roles, each with a text of its own, to try a template with."""
    return [{"role": role, "content": f"ostro_text_{i}"} for i, role in enumerate(roles)]


def shows_in_order(rendered: str, messages: Arranged) -> bool:
    """Whether a rendered conversation has all texts of systems and users in their order."""
    texts = [message["content"] for message in messages if message["role"] != "assistant"]
    places = [rendered.find(text) for text in texts]
    return -1 not in places and places == sorted(places)


def late_places(first: str, late: str) -> Sequence[tuple[str, ...]]:
    """The roles of conversations with a message of the role `late` in all usual places."""
    return (
        (first, "user", late),
        (first, "user", late, "assistant", "user"),
        (first, "user", "assistant", late, "user"),
    )


def join_leading(messages: Arranged) -> list[dict[str, Any]]:
    """Join the system messages before the first turn to one, with blank lines between them."""
    count = leading(messages)
    content = messages[0]["content"]
    for message in messages[1:count]:
        content = joined(content, message["content"])
    return [{**messages[0], "content": content}, *messages[count:]]


def move_late(messages: Arranged, features: TemplateFeatures) -> list[dict[str, Any]]:
    """Put system messages behind the first turn into the turn beside them, as marked blocks.

    They become the beginning of the user message or result of a tool that follows, else the end of
    the one before them, else a message of the user. The tokens before an answer thereby stay the
    same in later requests, whatever they add, and roles that alternate go on doing so.
    """
    start = leading(messages)
    placed = list(messages[:start])
    block: Any = None
    for message in messages[start:]:
        if is_system(message):
            block = joined(block, marked(message["content"], features))
            continue
        if block is not None and message["role"] in ("user", "tool"):
            message = {**message, "content": joined(block, message["content"])}
        elif block is not None:
            add_block(placed, block)
        block = None
        placed.append(message)
    if block is not None:
        add_block(placed, block)
    return placed


def add_block(placed: list[dict[str, Any]], block: Any) -> None:
    """Add a block to the last message if it is of a user or tool; else as a message of the user."""
    if placed and placed[-1]["role"] in ("user", "tool"):
        placed[-1] = {**placed[-1], "content": joined(placed[-1]["content"], block)}
    else:
        placed.append({"role": "user", "content": block})


def marked(content: Any, features: TemplateFeatures) -> Any:
    """A content between `BLOCK_START` and `BLOCK_END`."""
    start, end = (content_of(text, features) for text in (BLOCK_START, BLOCK_END))
    return joined(joined(start, content, ""), end, "")


def joined(first: Any, second: Any, between: str = "\n\n") -> Any:
    """Two contents, which are texts or lists of parts, as one. Texts that meet become one text."""
    if is_empty(first) or is_empty(second):
        return second if is_empty(first) else first
    if isinstance(first, str) and isinstance(second, str):
        return first + between + second
    *before, last = parts_of(first)
    head, *after = parts_of(second)
    if last.get("type") == head.get("type") == "text":
        return [*before, {**last, "text": last["text"] + between + head["text"]}, *after]
    return [*before, last, head, *after]


def parts_of(content: Any) -> Sequence[Any]:
    """A content as a list of parts."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
