"""Items of responses and conversations: messages, calls of tools with their outputs, reasoning.

The types have the fields of OpenAI's items; they are stored and sent as they are.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from ostro.core.errors import RequestError, Unsupported
from ostro.core.pipeline import mistyped
from ostro.core.store import new_id
from ostro.entrypoints.api.openai.responses.client_items import (
    ApplyPatchCallItem,
    ApplyPatchCallOutputItem,
    ClientCallItem,
    ClientCallOutputItem,
    LocalShellCallItem,
    LocalShellCallOutputItem,
    ShellCallItem,
    ShellCallOutputItem,
    ToolSearchCallItem,
    ToolSearchOutputItem,
)
from ostro.entrypoints.api.openai.responses.parts import (
    InputPart,
    InputText,
    OutputRefusal,
    OutputText,
    Part,
    ReasoningText,
    Status,
    SummaryText,
    Tagged,
)
from ostro.entrypoints.operations.requests.ignored import ignore
from ostro.entrypoints.operations.requests.known_fields import known_fields

Includable = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]
"""Values of `include`. All but two are of tools that the server lacks, or always answered."""
INCLUDABLE: Sequence[str] = get_args(Includable)
LOGPROBS = "message.output_text.logprobs"
"""The value of `include` for log probabilities."""
ENCRYPTED = "reasoning.encrypted_content"
"""The value of `include` for reasoning that the client keeps."""
CARRIED = "ostro:"
"""The start of `encrypted_content` of this server."""
DIGITS = 32
"""Hexadecimal digits at the end of an id; they sort in order of creation."""
GROUP = 19
"""Digits at the end of an id besides those of the time."""
V = TypeVar("V")


class MessageItem(Tagged, kw_only=True, tag="message"):
    """A message of the input or the output."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Part]
    id: str | UnsetType = UNSET
    status: Status | UnsetType = UNSET
    phase: Literal["commentary", "final_answer"] | UnsetType = UNSET


class FunctionCallItem(Tagged, kw_only=True, tag="function_call"):
    """A call of a function, which may be one of a namespace; `arguments` are JSON."""

    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    arguments: str
    id: str | UnsetType = UNSET
    status: Status | UnsetType = UNSET


class FunctionCallOutputItem(Tagged, kw_only=True, tag="function_call_output"):
    """The result of a function call."""

    call_id: str
    output: str | list[InputPart]
    id: str | UnsetType = UNSET
    status: Status | UnsetType = UNSET


class CustomCallItem(Tagged, kw_only=True, tag="custom_tool_call"):
    """A call of a custom tool, which may be one of a namespace; `input` is a text."""

    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    input: str
    id: str | UnsetType = UNSET
    status: Status | UnsetType = UNSET


class CustomCallOutputItem(Tagged, kw_only=True, tag="custom_tool_call_output"):
    """The result of a call of a custom tool."""

    call_id: str
    output: str | list[InputPart]
    id: str | UnsetType = UNSET
    status: Status | UnsetType = UNSET


class ReasoningItem(Tagged, kw_only=True, tag="reasoning"):
    """Reasoning of the model. The server writes no summaries.

    Its reasoning is in `content`, and on request also in `encrypted_content`; see `carried`. What
    other servers have encrypted is kept, and not read.
    """

    summary: list[SummaryText]
    content: list[ReasoningText] | UnsetType = UNSET
    encrypted_content: str | None = None
    id: str | UnsetType = UNSET
    status: Status | UnsetType = UNSET


def carried(reasoning: str) -> str:
    """Return `encrypted_content` that carries reasoning, for clients that keep nothing else of it.

    It is no secret to them, and not encrypted: `content` has it as well.
    """
    return CARRIED + b64encode(reasoning.encode()).decode()


def carried_reasoning(encrypted: str | None) -> str:
    """Return the reasoning in `encrypted_content`, "" for that of another server."""
    if encrypted is None or not encrypted.startswith(CARRIED):
        return ""
    try:
        return b64decode(encrypted.removeprefix(CARRIED), validate=True).decode()
    except ValueError:
        return ""


class ItemReference(Tagged, kw_only=True, tag="item_reference"):
    """Stands for an item of the input or the output of a stored response."""

    id: str


CallItem = FunctionCallItem | CustomCallItem | ClientCallItem
CallOutputItem = FunctionCallOutputItem | CustomCallOutputItem | ClientCallOutputItem
Item = MessageItem | ReasoningItem | CallItem | CallOutputItem
OutputItem = MessageItem | ReasoningItem | CallItem
PREFIXES: Mapping[type, str] = {
    MessageItem: "msg_",
    FunctionCallItem: "fc_",
    FunctionCallOutputItem: "fco_",
    CustomCallItem: "ctc_",
    CustomCallOutputItem: "ctco_",
    LocalShellCallItem: "lsh_",
    LocalShellCallOutputItem: "lsho_",
    ShellCallItem: "sh_",
    ShellCallOutputItem: "sho_",
    ApplyPatchCallItem: "apc_",
    ApplyPatchCallOutputItem: "apco_",
    ToolSearchCallItem: "tsc_",
    ToolSearchOutputItem: "tso_",
    ReasoningItem: "rs_",
}
"""Prefixes of the ids of items."""

KINDS: Sequence[str] = [str(kind.__struct_config__.tag) for kind in get_args(Item)]
"""Types of items that a conversation may contain."""
INPUT_KINDS = (*KINDS, "item_reference")
"""Types of items that the input of a response may contain."""
AnyItem = Item | ItemReference
STRUCTS: Mapping[str, type[msgspec.Struct]] = {
    str(kind.__struct_config__.tag): kind for kind in get_args(AnyItem)
}
"""The classes of items by their types."""
HOSTED_KINDS = frozenset(
    (
        "code_interpreter_call",
        "file_search_call",
        "image_generation_call",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "program",
        "program_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    )
)
"""Types of items of tools that OpenAI's servers run: this server has no part in them."""
DECODERS: Sequence[msgspec.json.Decoder[AnyItem]] = (
    msgspec.json.Decoder(AnyItem),
    msgspec.json.Decoder(MessageItem),  # accepts a message without a type
)


class ItemRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of an item. Log probabilities are returned whenever they are stored."""

    include: list[Includable] | None = None


class ItemListRequest(ItemRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of a list of items. `after` is the id of the last item of the page before."""

    after: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"


@dataclass(frozen=True)
class ItemPage:
    """A part of a list of items, and whether more follow."""

    items: list[Item]
    has_more: bool


def read_items(given: Sequence[msgspec.Raw], param: str, kinds: Sequence[str] = KINDS) -> list[Any]:
    """Return the items of a request's JSON: null fields count as absent, a message needs no type.

    kinds: the supported types. Items of tools that OpenAI's servers run are left out. Raises
    Unsupported for others, and for these if they are errors; RequestError for JSON that is not an
    item.
    """
    items = (read_item(item, f"{param}[{i}]", kinds) for i, item in enumerate(given))
    return [item for item in items if item is not None]


def read_item(given: msgspec.Raw, where: str, kinds: Sequence[str]) -> Item | ItemReference | None:
    """Return an item, None for one to leave out. Raises as `read_items`."""
    for decoder in DECODERS:
        with suppress(msgspec.ValidationError):
            item = decoder.decode(given)
            if tag_of(item) in kinds:
                return item
    try:
        found = without_nulls(msgspec.json.decode(given))
    except msgspec.ValidationError as error:  # a number beyond all floats
        raise mistyped(error, where) from None
    if isinstance(found, dict):
        kind = found.setdefault("type", "message" if "role" in found else "item_reference")
        if is_hosted(found) and ignore(f"items of the type {kind}"):
            return None
        if kind not in kinds or is_hosted(found):
            raise Unsupported(
                f"{where}: items of type {kind!r:.80} are not supported; expected "
                f"{', '.join(kinds)}",
                param=f"{where}.type",
            )
        with suppress(msgspec.ValidationError):  # most items have no unknown fields
            return msgspec.convert(found, type=AnyItem)
        given = known_fields(msgspec.json.encode(found), STRUCTS[kind], where)
    try:
        return msgspec.json.decode(given, type=AnyItem)
    except msgspec.ValidationError as error:
        raise mistyped(error, where) from None


def is_hosted(item: Mapping[str, Any]) -> bool:
    """Return whether an item in JSON is of a tool that OpenAI's servers run."""
    kind = item.get("type")
    return isinstance(kind, str) and kind in HOSTED_KINDS and item.get("execution") != "client"


def without_nulls(given: V) -> V:
    """Return JSON without the fields that are null."""
    if isinstance(given, dict):
        kept = {name: without_nulls(x) for name, x in given.items() if x is not None}
        return kept  # type: ignore[return-value]
    if isinstance(given, list):
        return [without_nulls(x) for x in given]  # type: ignore[return-value]
    return given


def stored_items(items: Iterable[Item], param: str) -> list[Item]:
    """Return items as they are stored: complete, with ids of one group and content in parts.

    Raises RequestError for a content that does not fit the role of its message, and for an output
    without the id of its call.
    """
    group = group_of(new_id(""))
    return [stored_item(item, f"{param}[{i}]", group) for i, item in enumerate(items)]


def group_of(id: str) -> str:
    """Return the digits that the ids of all input items of a request share."""
    return id[-GROUP:]


def stored_item(item: Item, where: str, group: str) -> Item:
    id = new_id(PREFIXES[type(item)])[:-GROUP] + group
    match item:
        case ReasoningItem():
            return replace(item, id=id, status=UNSET)
        case ApplyPatchCallOutputItem():  # its status says whether the file was changed
            return replace(item, id=id)
        case LocalShellCallOutputItem():
            call_id = item.call_id or item.id
            if not call_id:
                raise RequestError(f"{where}: call_id is missing", param=f"{where}.call_id")
            return replace(item, id=id, call_id=call_id, status="completed")
    found: Item = replace(item, id=id, status="completed")
    if not isinstance(found, MessageItem):
        return found
    parts: list[Part] = found.content if isinstance(found.content, list) else []
    if isinstance(found.content, str):
        parts = [InputText(text=found.content)]
    if found.role == "assistant":
        parts = [OutputText(text=x.text) if isinstance(x, InputText) else x for x in parts]
    allowed = (OutputText, OutputRefusal) if found.role == "assistant" else InputPart
    for part in parts:
        if not isinstance(part, allowed):
            raise RequestError(
                f"{where}.content: a message of the role {found.role} has no part {tag_of(part)}",
                param=f"{where}.content",
            )
    found.content = parts
    return found


def tag_of(item: msgspec.Struct) -> str:
    """Return the value of the field `type`."""
    return str(item.__struct_config__.tag)


def id_of(item: Item) -> str:
    """Return the id of a stored item."""
    assert item.id, "stored items have ids"
    return item.id


def after_item(items: Sequence[Item], id: str | None) -> Sequence[Item]:
    """Return the items behind the one with an id. Raises RequestError if there is none."""
    if id is None:
        return items
    for i, item in enumerate(items):
        if item.id == id:
            return items[i + 1 :]
    raise RequestError(f"{id!r:.80} is not an id of this list", param="after")
