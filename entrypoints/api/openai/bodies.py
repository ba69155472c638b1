"""The bodies of OpenAI's routes for chats and completions: requests for text, and further fields.

Sampling fields that OpenAI's API lacks have vLLM's names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec.structs import replace

from ostro.core.errors import RequestError, Unsupported
from ostro.core.messages.target import ModelTarget
from ostro.core.messages.text_requests import ChatRequest, CompletionRequest
from ostro.entrypoints.operations.metadata import Metadata

UNSUPPORTED: Mapping[str, str] = {
    "mm_processor_kwargs": "a setting of the processor of media",
}
"""Fields of other servers that would change the output, with their features."""

EXTENSIONS = ModelTarget.extensions | frozenset(
    "top_k min_p typical_p repetition_penalty dry_multiplier dry_base dry_allowed_length "
    "dry_penalty_last_n dry_sequence_breakers min_tokens max_total_tokens ignore_eos "
    "stop_token_ids include_stop_str_in_output cache_salt priority speculate prompt_logprobs "
    "chat_template_kwargs add_generation_prompt continue_final_message thinking_budget "
    "thinking_token_budget thinking_budget_tokens processors "
    "logits_processors response_format grammar json_schema guided_json guided_regex guided_choice "
    "guided_grammar structured_outputs".split()
)
"""Fields that OpenAI's API lacks."""
CACHE = "the prefix cache finds repeated prefixes by itself"


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Additional contents of a stream. Obfuscation, random padding of events, is not supported."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class PromptCacheOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How OpenAI caches a prompt."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m"] | None = None


class ChatBody(ChatRequest, kw_only=True):
    """A conversation that the assistant continues.

    `max_completion_tokens` is the newer name of `max_tokens`. `thinking_token_budget` (vLLM) and
    `thinking_budget_tokens` (llama.cpp) are other names of `thinking_budget`.
    """

    accepted: ClassVar[Mapping[str, str]] = {
        **ModelTarget.accepted,
        "prompt_cache_key": CACHE,
        "prompt_cache_options": CACHE,
        "prompt_cache_retention": CACHE,
        "safety_identifier": ModelTarget.accepted["user"],
        "verbosity": "open models have no setting of verbosity; ask for it in a message",
    }
    echoed: ClassVar[Mapping[str, str]] = {
        "metadata": "it belongs to stored completions",
        "service_tier": "the server has one tier, `default`",
    }
    unsupported: ClassVar[Mapping[str, str]] = {
        **UNSUPPORTED,
        "audio": "audio output; use /v1/audio/speech",
        "function_call": "the predecessor of tool_choice; use tool_choice",
        "functions": "the predecessor of tools; use tools",
        "moderation": "moderation",
        "prediction": "predicted output",
        "web_search_options": "web search",
    }
    extensions: ClassVar[frozenset[str]] = EXTENSIONS - {"response_format"}

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    store: bool | None = None
    metadata: Metadata | None = None
    service_tier: str | None = None
    max_completion_tokens: int | None = None
    thinking_token_budget: int | None = None
    thinking_budget_tokens: int | None = None
    modalities: list[Literal["text", "audio"]] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    safety_identifier: Annotated[str, msgspec.Meta(max_length=128)] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None

    def to_request(self) -> ChatRequest:
        """Return the request. Raises RequestError for contradictory fields, and Unsupported."""
        check_stream(self)
        if self.stream and self.prompt_logprobs is not None:
            raise Unsupported(
                "prompt_logprobs is not supported with stream", param="prompt_logprobs"
            )
        if "audio" in (self.modalities or ()):
            raise Unsupported(
                "modalities: this server's chats generate text only", param="modalities"
            )
        if self.service_tier not in (None, "auto", "default"):
            raise Unsupported(
                f"service_tier {self.service_tier!r:.40}: the server has one tier; use auto",
                param="service_tier",
            )
        return replace(
            self,
            max_tokens=one_of(self, "max_completion_tokens", "max_tokens"),
            thinking_budget=one_of(
                self, "thinking_budget", "thinking_token_budget", "thinking_budget_tokens"
            ),
        )


class CompletionBody(CompletionRequest, kw_only=True):
    """Prompts to continue: text or token ids, one or several.

    Control tokens in a text become their ids, unless `parse_special` is false; with a `suffix` they
    are text, unless it is true.
    """

    unsupported: ClassVar[Mapping[str, str]] = {
        **UNSUPPORTED,
        "metadata": "metadata of completions; use /v1/chat/completions",
        "service_tier": "a service tier of completions; use /v1/chat/completions",
        "store": "storing completions of prompts; use /v1/chat/completions",
    }
    extensions: ClassVar[frozenset[str]] = EXTENSIONS | {"parse_special"}

    stream: bool | None = None
    stream_options: StreamOptions | None = None

    def to_request(self) -> CompletionRequest:
        """Return the request. Raises as that of a chat."""
        check_stream(self)
        if self.stream and self.best_of is not None and self.best_of > (self.n or 1):
            raise RequestError("best_of greater than n cannot be streamed", param="best_of")
        return self


def one_of(body: ChatBody, *names: str) -> int | None:
    """The value of a field that has several names. Raises RequestError if they differ."""
    given = {name: x for name in names if (x := getattr(body, name)) is not None}
    if len(set(given.values())) > 1:
        raise RequestError(f"{' and '.join(given)} differ; use {names[0]}", param=names[0])
    return next(iter(given.values()), None)


def check_stream(body: ChatBody | CompletionBody) -> None:
    """Raise an error for stream options without a stream, and for obfuscation."""
    options = body.stream_options
    if options is None:
        return
    if not body.stream:
        raise RequestError("stream_options needs stream=true", param="stream_options")
    if options.include_obfuscation:
        raise Unsupported(
            "stream_options.include_obfuscation: padding of events is not implemented; use false",
            param="stream_options",
        )
