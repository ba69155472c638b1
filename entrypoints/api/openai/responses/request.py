"""Requests for responses, and the chat requests that they become."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from ostro.core.errors import OstroError, RequestError, Unsupported
from ostro.core.messages.text_requests import (
    JSON_OBJECT,
    ChatRequest,
    Constraint,
    JsonSchema,
    ReasoningEffort,
)
from ostro.entrypoints.api.openai.responses.chat import chat_messages
from ostro.entrypoints.api.openai.responses.items import (
    ENCRYPTED,
    INCLUDABLE,
    INPUT_KINDS,
    LOGPROBS,
    Item,
    ItemReference,
    read_items,
)
from ostro.entrypoints.api.openai.responses.tool_types import (
    AllowedTools,
    ClientToolChoice,
    FunctionTool,
    NamedChoice,
    RawSchema,
    ResponseTool,
    ToolChoice,
)
from ostro.entrypoints.api.openai.responses.tools import (
    chat_tool,
    check_choice,
    chosen_name,
    offered_functions,
    read_tools,
    schema_object,
)
from ostro.entrypoints.api.openai.tools import CHOICES
from ostro.entrypoints.operations.documents.metadata import Metadata
from ostro.entrypoints.operations.requests.decoding import json_aside
from ostro.entrypoints.operations.requests.ignored import ignore
from ostro.entrypoints.operations.requests.model_body import ModelBody

SummaryKind = Literal["auto", "concise", "detailed"]
MAX_ITEMS = 10_000
"""Limit on the items of one request."""
ITEM_BYTES = 256
"""Bytes of JSON that take as long to decode as an item, or a part of one, to convert."""
CACHE = "the prefix cache finds repeated prefixes by itself"
Label = Annotated[str, msgspec.Meta(max_length=512)]


class ReasoningOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How the model reasons. The server writes no summaries, whichever kind is wanted."""

    effort: ReasoningEffort | None = None
    summary: SummaryKind | None = None
    generate_summary: SummaryKind | None = None


class TextFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The format of the output; `json_schema` has a name and a schema.

    Every schema is enforced, whatever `strict` is.
    """

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | UnsetType = UNSET
    schema: RawSchema | UnsetType = UNSET
    description: str | UnsetType | None = UNSET
    strict: bool | UnsetType | None = UNSET

    @property
    def constraint(self) -> Constraint | None:
        """The constraint of the output, None for text.

        Raises RequestError for a schema that is missing, no object, or present with another type.
        """
        if (self.type == "json_schema") != (self.schema is not UNSET):
            state = "is missing" if self.schema is UNSET else "requires the type json_schema"
            raise RequestError(f"text.format.schema {state}", param="text.format.schema")
        if self.type == "text":
            return None
        schema = JSON_OBJECT
        if self.schema is not UNSET:
            schema = JsonSchema(schema_object(self.schema, "text.format.schema"))
        return Constraint(schema, "text.format")


class TextOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The format of the output; `verbosity` has no effect on a local model."""

    format: TextFormat = msgspec.field(default_factory=TextFormat)
    verbosity: Literal["low", "medium", "high"] | None = None


class StreamSettings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Options of a stream. The server adds no random characters to events."""

    include_obfuscation: Literal[False] | None = None


class CacheOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Options of the prefix cache, which keeps all prefixes for as long as there is room."""

    mode: Literal["implicit", "explicit"] = "implicit"
    ttl: Literal["30m", "12h"] = "30m"


class ConversationReference(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The id of a conversation."""

    id: str


class InputTokensRequest(ModelBody, kw_only=True):
    """An input of a response, whose tokens are counted."""

    unsupported: ClassVar[Mapping[str, str]] = {"personality": "a personality"}

    input: str | list[Item | ItemReference] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationReference | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None

    @property
    def conversation_id(self) -> str | None:
        """The id of the conversation."""
        given = self.conversation
        return given.id if isinstance(given, ConversationReference) else given


class ResponseRequest(InputTokensRequest, kw_only=True):
    """An input that the model answers. The fields are those of OpenAI's Responses API."""

    unsupported: ClassVar[Mapping[str, str]] = {
        "access_programs": "an access program",
        "context_management": "compaction",
        "image": "compression of images",
        "moderation": "moderation",
        "prompt": "a prompt template",
    }
    accepted: ClassVar[Mapping[str, str]] = {
        "client_metadata": "statements of the client about itself"
    }
    echoed: ClassVar[Mapping[str, str]] = {
        "prompt_cache_key": CACHE,
        "prompt_cache_options": CACHE,
        "prompt_cache_retention": CACHE,
        "safety_identifier": ModelBody.accepted["user"],
        "service_tier": "the server has one tier, `default`",
        "user": ModelBody.accepted["user"],
    }
    extensions: ClassVar[frozenset[str]] = ModelBody.extensions | {"seed", "top_k", "cache_salt"}

    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: StreamSettings | None = None
    include: list[str] | None = None
    metadata: Metadata | None = None
    client_metadata: dict[str, Any] | None = None
    max_output_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    max_tool_calls: Annotated[int, msgspec.Meta(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    service_tier: Literal["auto", "default"] | None = None
    user: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    prompt_cache_options: CacheOptions | None = None
    seed: int | None = None
    top_k: int | None = None
    cache_salt: str | None = None

    @property
    def wants_encrypted(self) -> bool:
        """Whether the output has reasoning that the client keeps."""
        return ENCRYPTED in (self.include or ())

    @property
    def wants_logprobs(self) -> bool:
        """Whether the output has log probabilities."""
        return LOGPROBS in (self.include or ())


class ResponseBody(ResponseRequest, kw_only=True):
    """The JSON of a `ResponseRequest`, before its items and tools are decoded."""

    input: str | list[msgspec.Raw] | None = None  # type: ignore[assignment]
    tools: list[msgspec.Raw] | None = None  # type: ignore[assignment]


class InputTokensBody(InputTokensRequest, kw_only=True):
    """The JSON of an `InputTokensRequest`, before its items and tools are decoded."""

    input: str | list[msgspec.Raw] | None = None  # type: ignore[assignment]
    tools: list[msgspec.Raw] | None = None  # type: ignore[assignment]


B = TypeVar("B", ResponseBody, InputTokensBody)
E = TypeVar("E", bound=OstroError)


def read_response_request(body: ResponseBody) -> ResponseRequest:
    """Return the request in a JSON body. Raises RequestError and Unsupported."""
    if body.input is None:
        raise RequestError("the field input is missing", param="input")
    check_state(body)
    check_output(body)
    return with_parts(body)


def read_count_request(body: InputTokensBody) -> InputTokensRequest:
    """Return the request for a count in a JSON body. Raises RequestError and Unsupported."""
    check_context(body)
    return with_parts(body)


def with_parts(body: B) -> B:
    """Return a body with its items and tools decoded. Raises as `read_items` and `read_tools`."""
    if isinstance(body.input, list):
        body = replace(body, input=read_items(body.input, "input", INPUT_KINDS))
    return body if body.tools is None else replace(body, tools=read_tools(body.tools))


def check_support(body: Mapping[str, Any]) -> None:
    """Raise Unsupported for a choice of tools in JSON that is not supported."""
    check_choice(body.get("tool_choice"))


def check_context(request: InputTokensRequest) -> None:
    """Raise RequestError for two sources of earlier items, and for too many items."""
    if request.previous_response_id is not None and request.conversation is not None:
        raise RequestError(
            "previous_response_id and conversation exclude each other",
            param="previous_response_id",
        )
    if isinstance(request.input, list) and len(request.input) > MAX_ITEMS:
        raise RequestError(
            f"got {len(request.input)} items; the limit is {MAX_ITEMS}", param="input"
        )


def check_state(request: ResponseRequest) -> None:
    """Raise RequestError if the request contradicts itself about what is stored."""
    check_context(request)
    if request.store is False:
        for name in ("background", "conversation"):
            if getattr(request, name):
                raise RequestError(f"{name} needs store; leave store out", param="store")


def check_output(request: ResponseRequest) -> None:
    """Raise Unsupported and RequestError for options of the output."""
    for name in request.include or ():
        if name not in INCLUDABLE and not ignore(f"include: {name}"):
            raise Unsupported(
                f"include: {name!r:.80} is not supported; expected {', '.join(INCLUDABLE)}",
                param="include",
            )
    if request.top_logprobs and not request.wants_logprobs:
        raise RequestError(f"top_logprobs needs include: [{LOGPROBS!r}]", param="top_logprobs")
    if request.stream_options is not None and not request.stream:
        raise RequestError("stream_options needs stream", param="stream_options")


async def chat_request(request: InputTokensRequest, items: Sequence[Item]) -> ChatRequest:
    """Return the chat request that continues items. Raises RequestError."""
    size = sum(map(len, schemas_of(request, items))) + ITEM_BYTES * sum(map(parts_of, items))
    return await json_aside(size, lambda: new_chat(request, items))


def new_chat(request: InputTokensRequest, items: Sequence[Item]) -> ChatRequest:
    tools = [*map(chat_tool, offered_functions(request.tools, items))]
    chat = ChatRequest(
        model=request.model,
        adapter=request.adapter,
        adapters=request.adapters,
        messages=chat_messages(request.instructions, items),
        tools=tools,
        parallel_tool_calls=request.parallel_tool_calls if tools else None,
        reasoning_effort=None if request.reasoning is None else request.reasoning.effort,
        constraint=None if request.text is None else request.text.format.constraint,
    )
    match request.tool_choice:
        case NamedChoice() | ClientToolChoice() as named:
            chat.tool_choice, chat.allowed_tools = "required", [chosen_name(named)]
        case AllowedTools(tools=[]) if tools:
            raise RequestError(f"tool_choice: expected {CHOICES}", param="tool_choice")
        case AllowedTools(mode=mode, tools=allowed):
            chat.tool_choice, chat.allowed_tools = mode, [*map(chosen_name, allowed)]
        case choice if tools or choice == "required":
            chat.tool_choice = choice
    if isinstance(request, ResponseRequest):
        chat.max_tokens = request.max_output_tokens
        chat.logprobs = request.top_logprobs or 0 if request.wants_logprobs else None
        chat.temperature, chat.top_p, chat.top_k = request.temperature, request.top_p, request.top_k
        chat.seed, chat.cache_salt = request.seed, request.cache_salt
    return chat


def parts_of(item: Item) -> int:
    """Return the number of an item and its parts."""
    lists = (getattr(item, name, None) for name in ("content", "output", "summary"))
    return 1 + sum(len(parts) for parts in lists if isinstance(parts, list))


def schemas_of(request: InputTokensRequest, items: Sequence[Item]) -> list[memoryview]:
    """Return the JSON schemas of a request and of the tools in its items."""
    given = (function.tool for function in offered_functions(request.tools, items))
    schemas = [tool.parameters for tool in given if isinstance(tool, FunctionTool)]
    if request.text is not None and request.text.format.schema is not UNSET:
        schemas.append(request.text.format.schema)
    return [memoryview(schema) for schema in schemas]


NAMES: Mapping[str, str] = {
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "prompt": "input",
    "reasoning_effort": "reasoning.effort",
    "thinking_budget": "reasoning.effort",
    "logprobs": "include",
}
"""Fields of chat requests, and the fields of responses that they come from."""


def with_own_field(error: E) -> E:
    """Return an error of a chat request, with the name of the response's field.

    Without the numbers of messages, which are not those of items.
    """
    name = "" if error.param is None else error.param.partition("[")[0]
    if own := NAMES.get(name):
        error.args = (re.sub(rf"^{name}(\[\d+\][.\w]*)?(?=[:= ])", own, str(error)),)
        error.param = own
    return error
