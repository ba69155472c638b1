"""A response: what a client reads and the store keeps."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from ostro.core.errors import EngineDied, OstroError, Overloaded
from ostro.core.messages.text import Usage
from ostro.core.store import new_id
from ostro.entrypoints.api.openai.responses.items import Item, OutputItem
from ostro.entrypoints.api.openai.responses.request import (
    CacheOptions,
    ConversationReference,
    ReasoningOptions,
    ResponseRequest,
    TextOptions,
)
from ostro.entrypoints.api.openai.responses.tool_types import ResponseTool, ToolChoice
from ostro.entrypoints.operations.access.quotas import RateLimited

PREFIX = "resp_"
ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
ENDED: tuple[ResponseStatus, ...] = ("completed", "incomplete", "failed", "cancelled")


class ResponseFault(msgspec.Struct, kw_only=True):
    """The reason why a response failed."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class IncompleteDetails(msgspec.Struct, kw_only=True):
    """The reason why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class InputDetails(msgspec.Struct, kw_only=True):
    """Input tokens that came from the prefix cache. What it stores is not counted."""

    cached_tokens: int
    cache_write_tokens: Literal[0] = 0


class OutputDetails(msgspec.Struct, kw_only=True):
    """Tokens of reasoning, which are part of the output."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, kw_only=True):
    """Token counts of a response."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Response(msgspec.Struct, kw_only=True):
    """A response. `adapter_generations` extends OpenAI's API. Times are in seconds since 1970."""

    id: str
    created_at: int
    model: str
    status: ResponseStatus
    output: list[OutputItem]
    background: bool
    error: ResponseFault | None = None
    incomplete_details: IncompleteDetails | None = None
    completed_at: int | None = None
    conversation: ConversationReference | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: Mapping[str, str] = {}
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: CacheOptions | UnsetType = UNSET
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    reasoning: ReasoningOptions | None = None
    safety_identifier: str | None = None
    service_tier: Literal["default"] = "default"
    store: bool = True
    temperature: float | None = None
    text: TextOptions
    tool_choice: ToolChoice = "auto"
    tools: list[ResponseTool]
    top_logprobs: int | None = None
    top_p: float | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None
    object: Literal["response"] = "response"
    adapter_generations: list[str] | UnsetType = UNSET

    @property
    def ended(self) -> bool:
        """Whether the response changes no more."""
        return self.status in ENDED


class StoredResponse(msgspec.Struct, kw_only=True):
    """A stored response.

    streamed  whether its events are stored
    attempts  how often the generation of a response in the background has begun
    """

    response: Response
    streamed: bool = False
    attempts: int = 0


class ResponseStatusOnly(msgspec.Struct, kw_only=True):
    """The fields of a response that say how far it is."""

    status: ResponseStatus
    created_at: int

    @property
    def ended(self) -> bool:
        """Whether the response changes no more."""
        return self.status in ENDED


class StoredStatus(msgspec.Struct, kw_only=True):
    """A `StoredResponse` of which only a part is decoded."""

    response: ResponseStatusOnly
    streamed: bool = False


class StoredInput(msgspec.Struct, kw_only=True):
    """The input of a stored response, without what it continues.

    `request` is kept while a response in the background has not ended; `model` is its model.
    """

    items: list[Item]
    request: ResponseRequest | None = None
    model: str = ""


def new_response(request: ResponseRequest, model: str, store: bool) -> Response:
    """Return the response to a request, before its generation."""
    conversation = request.conversation_id
    background, reasoning = bool(request.background), request.reasoning
    if reasoning is not None:  # no summary is written
        reasoning = replace(reasoning, summary=None, generate_summary=None)
    return Response(
        id=new_id(PREFIX),
        created_at=int(time.time()),
        model=model,
        status="queued" if background else "in_progress",
        output=[],
        background=background,
        conversation=None if conversation is None else ConversationReference(id=conversation),
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        metadata=request.metadata or {},
        parallel_tool_calls=request.parallel_tool_calls is not False,
        previous_response_id=request.previous_response_id,
        prompt_cache_key=request.prompt_cache_key,
        prompt_cache_options=request.prompt_cache_options or UNSET,
        prompt_cache_retention=request.prompt_cache_retention,
        reasoning=reasoning,
        safety_identifier=request.safety_identifier,
        store=store,
        temperature=request.temperature,
        text=request.text or TextOptions(),
        tool_choice=request.tool_choice or "auto",
        tools=request.tools or [],
        top_logprobs=request.top_logprobs,
        top_p=request.top_p,
        truncation=request.truncation or "disabled",
        user=request.user,
    )


def usage_of(used: Usage) -> ResponseUsage:
    """Return the field `usage`."""
    return ResponseUsage(
        input_tokens=used.prompt,
        input_tokens_details=InputDetails(cached_tokens=used.cached),
        output_tokens=used.completion,
        output_tokens_details=OutputDetails(reasoning_tokens=used.reasoning),
        total_tokens=used.prompt + used.completion,
    )


def failed(response: Response, error: Exception) -> Response:
    """Return a response that an error has ended. The cause of an unexpected one is left out."""
    return replace(response, status="failed", error=fault_of(error))


def fault_of(error: Exception) -> ResponseFault:
    if not isinstance(error, OstroError) or isinstance(error, EngineDied):
        return ResponseFault(code="server_error", message="internal error; see the server's log")
    if isinstance(error, Overloaded | RateLimited):
        return ResponseFault(code="rate_limit_exceeded", message=str(error))
    code: Literal["server_error", "invalid_prompt"] = "server_error"
    if error.status < 500:
        code = "invalid_prompt"
    return ResponseFault(code=code, message=str(error))
