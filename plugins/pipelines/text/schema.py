"""The requests of the text pipeline: those of OpenAI's chat and completions routes.

Sampling fields that OpenAI's API lacks have vLLM's names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from ostro.pipelines import ModelTarget, TextRequest

IGNORED = ModelTarget.ignored | frozenset(
    ("parallel_tool_calls", "prompt_cache_key", "prompt_cache_retention", "verbosity")
)
"""Fields that do not change the output."""

UNSUPPORTED: Mapping[str, str] = {
    "audio": "audio output",
    "function_call": "functions; use tools",
    "functions": "functions; use tools",
    "grammar": "constrained output",
    "guided_choice": "constrained output",
    "guided_grammar": "constrained output",
    "guided_json": "constrained output",
    "guided_regex": "constrained output",
    "mm_processor_kwargs": "media",
    "prediction": "predicted output",
    "structured_outputs": "constrained output",
    "suffix": "fill in the middle",
    "web_search_options": "web search",
}
"""Fields that would change the output and are not implemented, with their features."""


EXTENSIONS = ModelTarget.extensions | frozenset(
    "top_k min_p typical_p repetition_penalty dry_multiplier dry_base dry_allowed_length "
    "dry_penalty_last_n dry_sequence_breakers min_tokens ignore_eos stop_token_ids "
    "include_stop_str_in_output cache_salt priority prompt_logprobs chat_template_kwargs "
    "add_generation_prompt continue_final_message".split()
)
"""Fields that OpenAI's API lacks."""


class ContentPart(msgspec.Struct, kw_only=True):
    """A part of a message's content: text, or a medium with a URL or, for audio, data.

    Types as in OpenAI's API and vLLM: text, image_url, input_audio, audio_url, video_url.
    """

    type: str
    text: str | None = None
    image_url: str | dict[str, Any] | None = None
    audio_url: str | dict[str, Any] | None = None
    video_url: str | dict[str, Any] | None = None
    input_audio: dict[str, Any] | None = None


class Message(msgspec.Struct, kw_only=True):
    """One turn of a conversation."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class GenerationRequest(TextRequest, kw_only=True):
    """The fields that chat and completion requests share. None stands for the default."""

    ignored: ClassVar[frozenset[str]] = IGNORED
    unsupported: ClassVar[Mapping[str, str]] = UNSUPPORTED
    extensions: ClassVar[frozenset[str]] = EXTENSIONS

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
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    cache_salt: str | None = None
    priority: int | None = None
    response_format: dict[str, Any] | None = None


class ChatRequest(GenerationRequest, kw_only=True):
    """A conversation that the assistant continues."""

    messages: str | list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    modalities: list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class CompletionRequest(GenerationRequest, kw_only=True):
    """Prompts to continue: text or token ids, one or several."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None
