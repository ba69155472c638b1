"""Rejection of features by name, before a request is converted to its type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ostro.errors import Unsupported
from ostro.http import ignore
from ostro.plugins.apis.anthropic.client_tools import CLIENT_TOOLS, versions
from ostro.plugins.apis.anthropic.schema import BLOCKS, RESULT_BLOCKS

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
        if isinstance(kind, str):
            takes_tool(kind, where)
    for message, fields in objects(body, "messages"):
        for where, block in objects(fields, "content", message):
            check_block(where, block)
            if block.get("type") == "tool_result":
                for place, part in objects(block, "content", where):
                    check_block(place, part, RESULT_BLOCKS)


def takes_tool(kind: str | None, where: str) -> bool:
    """Whether the model gets a tool of this type: not those that only Anthropic's servers run.

    Raises Unsupported for those if nothing may be ignored, and for unknown versions of tools that
    the client runs.
    """
    if kind in (None, "custom") or kind in CLIENT_TOOLS:
        return True
    if (known := versions(kind)) or not ignore(f"tools of the type {kind}"):
        raise Unsupported(
            f"{where}.type: {kind!r:.60} is not supported; use tools of the type "
            f"{' or '.join([*known, 'custom'])}, which the client runs",
            param=f"{where}.type",
        )
    return False


def check_block(where: str, block: Mapping[str, Any], kinds: Sequence[str] = BLOCKS) -> None:
    """Raise Unsupported for a content block or a source of a type that is not supported."""
    kind = block.get("type")
    if isinstance(kind, str) and kind not in kinds:
        raise Unsupported(
            f"{where}.type: {kind!r:.60} is not supported; expected one of {', '.join(kinds)}",
            param=f"{where}.type",
        )
    source = block.get("source")
    given = source.get("type") if isinstance(source, Mapping) else None
    if given == "file" or (kind == "document" and given in ("base64", "url")):
        raise Unsupported(
            f"{where}.source: {SOURCES[given]} are not supported; send the text or an image",
            param=f"{where}.source",
        )


def objects(owner: Mapping[str, Any], name: str, where: str = "") -> Iterator[Place]:
    """Yield the objects in a list of an object."""
    items = owner.get(name)
    for i, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, Mapping):
            yield f"{where}.{name}[{i}]".lstrip("."), item
