"""Requests for text: what a client wants, before a pipeline makes it a request of the engine.

The names of the fields are those of OpenAI's API, and vLLM's for what that API lacks. Each API
family converts its own requests to these.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ostro.core.messages.target import ModelTarget

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class FilePart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A file: the id of an uploaded one, or its data in base64 or as a data URL."""

    file_id: str | None = None
    file_data: str | None = None
    filename: str | None = None


class ContentPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of a message's content: text, a medium with a URL or, for audio, data, or a file.

    Types as in OpenAI's API and vLLM: text, refusal, image_url, input_audio, audio_url, video_url,
    file. `prompt_cache_breakpoint` and `cache_control` have no effect: the prefix cache finds
    repeated prefixes by itself.
    """

    type: str
    text: str | None = None
    refusal: str | None = None
    file: FilePart | None = None
    prompt_cache_breakpoint: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None
    image_url: str | dict[str, Any] | None = None
    audio_url: str | dict[str, Any] | None = None
    video_url: str | dict[str, Any] | None = None
    input_audio: dict[str, Any] | None = None


class FunctionCall(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A function call in the predecessor of `tool_calls`; `arguments` are JSON."""

    name: str
    arguments: str


class Message(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One turn of a conversation.

    `function_call` and the role function are the predecessors of `tool_calls` and of the role tool.
    `annotations`, the citations of a web search, are not part of the prompt.
    """

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    function_call: FunctionCall | None = None
    annotations: list[Any] | None = None
    audio: dict[str, Any] | None = None


class NamedSchema(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A JSON schema with a name. Every schema is enforced, whatever `strict` is."""

    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The form of the output: text, JSON, or vLLM's text with tags that begin JSON.

    `schema` without a name is llama.cpp's form.
    """

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: NamedSchema | None = None
    schema: dict[str, Any] | bool | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None
    format: dict[str, Any] | None = None


class Grammar(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A grammar in mistral.rs's form."""

    type: Literal["regex", "json_schema", "lark", "yacc", "gbnf", "llguidance"]
    value: Any


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The form of the output, as vLLM states it; one of the fields."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None


class TextRequest(ModelTarget, kw_only=True):
    """The fields that chats and completions share. None stands for the default.

    `logits_processors` are parameters of installed logits processors by name; `processors` is its
    older name. One of the last eight fields at most constrains the output.
    `max_total_tokens` limits the tokens of prompt and output together, as a shorter context. False
    for `speculate` turns speculative decoding off for the request, and draws each forced token.
    """

    n: int | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[str] | None = None
    min_tokens: int | None = None
    max_total_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    cache_salt: str | None = None
    priority: int | None = None
    speculate: bool | None = None
    prompt_logprobs: int | None = None
    processors: dict[str, Any] | None = None
    logits_processors: dict[str, Any] | None = None
    response_format: ResponseFormat | None = None
    json_schema: dict[str, Any] | None = None
    grammar: str | Grammar | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None


class ChatRequest(TextRequest, kw_only=True):
    """A conversation that the assistant continues.

    `thinking_budget` limits the tokens of the reasoning, which then ends and the answer begins.
    """

    messages: str | list[Message]
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: ReasoningEffort | None = None
    thinking_budget: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class CompletionRequest(TextRequest, kw_only=True):
    """Prompts to continue: text or token ids, one or several.

    Control tokens in a text become their ids, unless `parse_special` is false; with a `suffix` they
    are text, unless it is true.
    """

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    parse_special: bool | None = None
    best_of: int | None = None
