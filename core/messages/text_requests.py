"""Requests for text: what a client wants, before a pipeline makes it a request of the engine.

The types belong to no API. Each API family converts the JSON of its clients to these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from ostro.core.messages.prompt import Prompt
from ostro.core.messages.target import ModelTarget

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class TextPart(msgspec.Struct, frozen=True):
    """A text among the parts of a message."""

    text: str


class MediaPart(msgspec.Struct, frozen=True):
    """An image, a video or audio among the parts of a message.

    kind   image, video or audio
    value  an address, which may be a data URL; in Python also a path, bytes, an image
           or an array
    """

    kind: str
    value: Any


class FilePart(msgspec.Struct, frozen=True, kw_only=True):
    """A file: the id of an uploaded one, or its data in base64 or as a data URL."""

    file_id: str | None = None
    file_data: str | None = None
    filename: str | None = None


ContentPart = TextPart | MediaPart | FilePart
"""A part of a message: text, a medium, or a file whose contents become one of the two."""


class ToolCall(msgspec.Struct, kw_only=True):
    """A call of a tool in an answer of the assistant.

    id         "" without one
    arguments  JSON, unless the model writes other text
    """

    name: str
    id: str = ""
    arguments: str = ""


class Message(msgspec.Struct, kw_only=True):
    """One turn of a conversation.

    role          system, developer, user, assistant or tool
    content       text, or parts; None for an answer of tool calls or reasoning alone
    reasoning     the reasoning of an answer
    tool_calls    the calls of an answer
    tool_call_id  the id of the call that a message of the role tool has the result of
    """

    role: str
    content: str | Sequence[ContentPart] | None = None
    name: str | None = None
    reasoning: str | None = None
    tool_calls: Sequence[ToolCall] = ()
    tool_call_id: str | None = None

    @property
    def parts(self) -> Sequence[ContentPart]:
        """The parts of the content; none of a text."""
        return () if isinstance(self.content, str) else self.content or ()


class Tool(msgspec.Struct, frozen=True):
    """A tool that the model may call.

    parameters  a JSON schema, which the arguments of `strict` calls have to follow
    format      what the only argument of calls, a text, has to follow; a grammar is in Lark
    extra       further keys of its declaration, which chat templates may read
    """

    name: str
    parameters: Mapping[str, Any] = {}
    strict: bool = False
    description: str | None = None
    extra: Mapping[str, Any] = {}
    format: Regex | Grammar | None = None


class JsonSchema(msgspec.Struct, frozen=True):
    """JSON that satisfies a schema; `True` permits every value."""

    schema: Mapping[str, Any] | bool


JSON_OBJECT = JsonSchema({"type": "object"})
"""Any JSON object."""


class Regex(msgspec.Struct, frozen=True):
    """Text that a regular expression matches."""

    pattern: str


class Choices(msgspec.Struct, frozen=True):
    """One of several texts."""

    texts: Sequence[str]


class Grammar(msgspec.Struct, frozen=True):
    """Text of a grammar in the syntax of Lark, of GBNF (llama.cpp) or of Yacc."""

    notation: Literal["lark", "gbnf", "yacc"]
    text: str


class StructuralTag(msgspec.Struct, frozen=True):
    """Text with tags that begin JSON, in the format of vLLM: `structures`, `triggers`, `format`."""

    value: Mapping[str, Any]


ConstraintValue = JsonSchema | Regex | Choices | Grammar | StructuralTag


class Constraint(msgspec.Struct, frozen=True):
    """What the text of an answer has to satisfy; `field` is the field of the client's request."""

    value: ConstraintValue
    field: str


class TextRequest(ModelTarget, kw_only=True):
    """The fields that chats and completions share. None stands for the default.

    logits_processors  parameters of installed logits processors, by name
    logprobs           how many alternatives to report with the log probability of each token; 0:
                       that of the token alone, None: no log probabilities
    max_total_tokens   limits the tokens of prompt and output together, as a shorter context
    return_token_ids   whether the events of the text have the ids of its tokens
    speculate          False turns speculative decoding off, and draws each forced token
    """

    n: int | None = None
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] = {}
    seed: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: Sequence[str] | None = None
    min_tokens: int | None = None
    max_total_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool | None = None
    cache_salt: str | None = None
    priority: int | None = None
    speculate: bool | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None
    constraint: Constraint | None = None
    logits_processors: Mapping[str, Any] = {}


class ChatRequest(TextRequest, kw_only=True):
    """A conversation that the assistant continues.

    tool_choice           whether the model may call tools (auto), must (required) or must not
    allowed_tools         the names of the tools that it may call; None: all
    thinking_budget       limits the tokens of the reasoning, which then ends and the answer begins
    chat_template_kwargs  variables of the chat template
    """

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    tool_choice: Literal["auto", "none", "required"] | None = None
    allowed_tools: Sequence[str] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: ReasoningEffort | None = None
    thinking_budget: int | None = None
    chat_template_kwargs: Mapping[str, Any] = {}
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class CompletionRequest(TextRequest, kw_only=True):
    """Prompts to continue, each text, token ids, or token ids with media.

    Control tokens in a text become their ids, unless `parse_special` is false; with a `suffix` they
    are text, unless it is true.
    """

    prompts: Sequence[str | list[int] | Prompt]
    echo: bool | None = None
    suffix: str | None = None
    parse_special: bool | None = None
    best_of: int | None = None
