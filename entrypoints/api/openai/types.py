"""OpenAI's JSON of text responses, with vLLM's stop_reason, prompt_logprobs and reasoning."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from ostro.core.messages.outputs import Finish, TokenLogprobs
from ostro.core.messages.text import ChoiceEnd, Event, Text, Usage
from ostro.core.tokenizer.detokenizer import token_name
from ostro.entrypoints.operations.tasks.text import CompletionChoice

MIN_LOGPROB = -9999.0
"""Replaces minus infinity, which JSON cannot represent."""
TokenBytes = Callable[[int], bytes]
"""Converts a token id to its bytes."""
ADAPTERS_HEADER = "x-adapter-generations"
"""Header with the adapter generations of a response whose body is not JSON."""
T = TypeVar("T")


class PromptTokens(msgspec.Struct, kw_only=True):
    """The prompt tokens of text, images and videos, and sound; those from the prefix cache."""

    cached_tokens: int
    text_tokens: int
    image_tokens: int
    audio_tokens: int


class CompletionTokens(msgspec.Struct, kw_only=True):
    """The completion tokens of text and of reasoning.

    The predictions are those of speculative decoding: the accepted ones are completion tokens, the
    rejected ones are not.
    """

    reasoning_tokens: int
    text_tokens: int
    audio_tokens: Literal[0] = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class TokenUsage(msgspec.Struct, kw_only=True):
    """Token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokens
    completion_tokens_details: CompletionTokens


class TokenAlternative(msgspec.Struct, kw_only=True):
    """A token that the model considered.

    `bytes` are its part of the text in UTF-8; those of several tokens may make one character. Then
    `token` has the form "bytes:\\xf0\\x9f".
    """

    token: str
    logprob: float
    bytes: list[int]


class ChatToken(TokenAlternative, kw_only=True):
    """A sampled token and the most probable ones."""

    top_logprobs: list[TokenAlternative]


class ChatLogprobs(msgspec.Struct, kw_only=True):
    """The log probabilities of a chat's tokens."""

    content: list[ChatToken]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    """The log probabilities of a completion's tokens, in lists of equal lengths.

    A part of a character has the name "bytes:\\xf0\\x9f", a token whose name another one has
    "token_id:7".
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class RankedToken(msgspec.Struct, kw_only=True):
    """A token of the prompt. The rank of a token outside the top ones is null."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, RankedToken] | None]
"""By token id, for each token of the prompt; null for the first one."""


class Function(msgspec.Struct, kw_only=True):
    """A call of a function; `arguments` are JSON."""

    name: str
    arguments: str


class MessageToolCall(msgspec.Struct, kw_only=True, tag_field="type", tag="function"):
    """A call of a function in a message."""

    id: str
    function: Function


class CustomCall(msgspec.Struct, kw_only=True):
    """A call of a custom tool; `input` is a text."""

    name: str
    input: str


class MessageCustomCall(msgspec.Struct, kw_only=True, tag_field="type", tag="custom"):
    """A call of a custom tool in a message."""

    id: str
    custom: CustomCall


class FunctionDelta(msgspec.Struct, kw_only=True):
    """The next part of a call of a function."""

    name: str | UnsetType = UNSET
    arguments: str = ""


class CustomDelta(msgspec.Struct, kw_only=True):
    """The name of a call of a custom tool, or all of its input."""

    name: str | UnsetType = UNSET
    input: str = ""


class ToolCallDelta(msgspec.Struct, kw_only=True):
    """The next part of a tool call. The first one has its id and name.

    It has a `function` or a `custom` tool; of a function, the first one alone has the type.
    """

    index: int
    function: FunctionDelta | UnsetType = UNSET
    custom: CustomDelta | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType = UNSET


class ChatMessage(msgspec.Struct, kw_only=True):
    """The assistant's message. Servers differ in the name of the reasoning: both are sent."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[MessageToolCall | MessageCustomCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    """A choice of a chat completion."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None
    stop_reason: str | int | UnsetType | None = UNSET


class ChatDelta(msgspec.Struct, kw_only=True):
    """The next part of the assistant's message."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    """A choice of a chunk of a chat completion."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: Finish | None = None
    stop_reason: str | int | UnsetType | None = UNSET


class TextChoice(msgspec.Struct, kw_only=True):
    """A choice of a completion, or of one of its chunks."""

    index: int
    text: str = ""
    logprobs: CompletionLogprobs | None = None
    finish_reason: Finish | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Heading(msgspec.Struct, kw_only=True):
    """The first fields of every text response; `created` is in seconds since 1970."""

    id: str
    created: int
    model: str


class ChatCompletion(Heading, kw_only=True):
    """A chat completion. The last two fields extend OpenAI's API."""

    choices: list[ChatChoice]
    usage: TokenUsage
    object: Literal["chat.completion"] = "chat.completion"
    metadata: dict[str, str] | UnsetType = UNSET
    service_tier: Literal["default"] | UnsetType = UNSET
    adapter_generations: list[str] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class ChatCompletionChunk(Heading, kw_only=True):
    """An event of a streamed chat completion."""

    choices: list[ChatChunkChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    service_tier: Literal["default"] | UnsetType = UNSET
    usage: TokenUsage | UnsetType | None = UNSET
    adapter_generations: list[str] | UnsetType = UNSET


class TextCompletion(Heading, kw_only=True):
    """A completion."""

    choices: list[TextChoice]
    usage: TokenUsage
    object: Literal["text_completion"] = "text_completion"
    adapter_generations: list[str] | UnsetType = UNSET


class TextCompletionChunk(Heading, kw_only=True):
    """An event of a streamed completion."""

    choices: list[TextChoice]
    object: Literal["text_completion"] = "text_completion"
    usage: TokenUsage | UnsetType | None = UNSET
    adapter_generations: list[str] | UnsetType = UNSET


def usage(used: Usage) -> TokenUsage:
    """Return the field `usage`."""
    return TokenUsage(
        prompt_tokens=used.prompt,
        completion_tokens=used.completion,
        total_tokens=used.prompt + used.completion,
        prompt_tokens_details=PromptTokens(
            cached_tokens=used.cached,
            text_tokens=used.prompt - used.image - used.audio,
            image_tokens=used.image,
            audio_tokens=used.audio,
        ),
        completion_tokens_details=CompletionTokens(
            reasoning_tokens=used.reasoning,
            text_tokens=used.completion - used.reasoning,
            accepted_prediction_tokens=used.accepted,
            rejected_prediction_tokens=used.drafted - used.accepted,
        ),
    )


def base64_text(data: bytes) -> str:
    """Return bytes as base64."""
    return b64encode(data).decode()


def unless_none(value: T | None) -> T | UnsetType:
    """Return a value, or UNSET for None: the field is left out.

    Responses to requests without adapters have no `adapter_generations`. An activated LoRA whose
    invocation is absent from the prompt has no generation in the list.
    """
    return UNSET if value is None else value


def adapter_headers(generations: Sequence[str] | None) -> dict[str, str]:
    """Return the generations as a header, for a body that is not JSON."""
    return {} if generations is None else {ADAPTERS_HEADER: ",".join(generations)}


def completion_choice(choice: CompletionChoice, token_bytes: TokenBytes) -> TextChoice:
    """Return a choice of a completion."""
    return TextChoice(
        index=choice.index,
        text=choice.text,
        logprobs=completion_logprobs(choice, token_bytes),
        finish_reason=choice.finish,
        stop_reason=choice.stopped_by if choice.finish else UNSET,
        prompt_logprobs=prompt_logprobs(choice.prompt_logprobs, token_bytes),
    )


def completion_chunk_choice(event: Event, token_bytes: TokenBytes) -> TextChoice:
    """Return a choice of a chunk of a completion."""
    choice = TextChoice(index=event.index)
    match event:
        case Text():
            choice.text = event.text
            choice.logprobs = completion_logprobs(event, token_bytes)
            choice.prompt_logprobs = prompt_logprobs(event.prompt_logprobs, token_bytes)
        case ChoiceEnd():
            choice.finish_reason, choice.stop_reason = event.finish, event.stopped_by
    return choice


def chat_logprobs(
    entries: Sequence[TokenLogprobs | None] | None, token_bytes: TokenBytes
) -> ChatLogprobs | None:
    """Return the log probabilities of a chat, None without any."""
    if entries is None:
        return None

    def fields(token: int, logprob: float) -> dict[str, Any]:
        piece = token_bytes(token)
        return {"token": token_name(piece), "logprob": finite(logprob), "bytes": list(piece)}

    return ChatLogprobs(
        content=[
            ChatToken(
                **fields(entry.token, entry.logprob),
                top_logprobs=[TokenAlternative(**fields(*pair)) for pair in entry.top],
            )
            for entry in entries
            if entry is not None
        ]
    )


def completion_logprobs(
    found: CompletionChoice | Text, token_bytes: TokenBytes
) -> CompletionLogprobs | None:
    """Return the log probabilities of a completion, None without any."""
    if found.logprobs is None:
        return None
    return CompletionLogprobs(
        tokens=[token_name(token_bytes(token)) for token in found.tokens],
        token_logprobs=[
            None if entry is None else finite(entry.logprob) for entry in found.logprobs
        ],
        top_logprobs=[
            None if entry is None else named_logprobs(entry, token_bytes)
            for entry in found.logprobs
        ],
        text_offset=found.offsets,
    )


def named_logprobs(entry: TokenLogprobs, token_bytes: TokenBytes) -> dict[str, float]:
    """Return a token and its alternatives by name. The sampled token keeps its name."""
    own = token_name(token_bytes(entry.token))
    found: dict[str, float] = {}
    for token, logprob in alternatives(entry):
        name = token_name(token_bytes(token))
        if token != entry.token and (name == own or name in found):
            name = f"token_id:{token}"
        found[name] = finite(logprob)
    return found


def prompt_logprobs(
    entries: Sequence[TokenLogprobs | None] | None, token_bytes: TokenBytes
) -> PromptLogprobs | UnsetType:
    """Return the log probabilities of the prompt, UNSET without any."""
    if entries is None:
        return UNSET
    return [None if entry is None else ranked(entry, token_bytes) for entry in entries]


def ranked(entry: TokenLogprobs, token_bytes: TokenBytes) -> dict[str, RankedToken]:
    """Return a token and its alternatives by id."""
    ranks = {token: rank for rank, (token, _) in enumerate(entry.top, 1)}
    return {
        str(token): RankedToken(
            logprob=finite(logprob),
            rank=ranks.get(token),
            decoded_token=token_name(token_bytes(token)),
        )
        for token, logprob in alternatives(entry)
    }


def alternatives(entry: TokenLogprobs) -> list[tuple[int, float]]:
    """Return the top tokens, followed by the sampled token unless it is one of them."""
    if any(token == entry.token for token, _ in entry.top):
        return list(entry.top)
    return [*entry.top, (entry.token, entry.logprob)]


def finite(logprob: float) -> float:
    return max(logprob, MIN_LOGPROB)
