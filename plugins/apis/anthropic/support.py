"""Rejection of features by name, before a request is converted to its type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ostro.errors import Unsupported
from ostro.plugins.apis.anthropic.schema import BLOCKS

SOURCES = {
    "base64": "PDF documents",
    "url": "documents at URLs",
    "file": "files of the Files API",
}
"""Types of the sources of documents and images, with the features that are not supported."""
Place = tuple[str, Mapping[str, Any]]
"""An object of a request and its path."""


def check_support(body: Mapping[str, Any]) -> None:
    """Raise Unsupported for tools, blocks and sources of types that the server does not support.

    body: the JSON of a request. Malformed parts are left to its type.
    """
    for where, tool in objects(body, "tools"):
        kind = tool.get("type")
        if isinstance(kind, str) and kind != "custom":
            raise Unsupported(
                f"{where}.type: {kind!r:.60} is not supported; use tools of the type custom, which "
                "the client runs",
                param=f"{where}.type",
            )
    for message, fields in objects(body, "messages"):
        for where, block in blocks(fields, message):
            check_block(where, block)


def check_block(where: str, block: Mapping[str, Any]) -> None:
    """Raise Unsupported for a content block or a source of a type that is not supported."""
    kind = block.get("type")
    if isinstance(kind, str) and kind not in BLOCKS:
        raise Unsupported(
            f"{where}.type: {kind!r:.60} is not supported; expected one of {', '.join(BLOCKS)}",
            param=f"{where}.type",
        )
    source = block.get("source")
    given = source.get("type") if isinstance(source, Mapping) else None
    if given == "file" or (kind == "document" and given in ("base64", "url")):
        raise Unsupported(
            f"{where}.source: {SOURCES[given]} are not supported; send the text or an image",
            param=f"{where}.source",
        )


def blocks(message: Mapping[str, Any], where: str) -> Iterator[Place]:
    """Yield the content blocks of a message, and those in the results of tools."""
    for place, block in objects(message, "content", where):
        yield place, block
        if block.get("type") == "tool_result":
            yield from objects(block, "content", place)


def objects(owner: Mapping[str, Any], name: str, where: str = "") -> Iterator[Place]:
    """Yield the objects in a list of an object."""
    items = owner.get(name)
    for i, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, Mapping):
            yield f"{where}.{name}[{i}]".lstrip("."), item
