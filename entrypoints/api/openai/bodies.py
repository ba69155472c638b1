"""The bodies of OpenAI's routes for chats and completions, and the requests that they state.

Sampling fields that OpenAI's API lacks have vLLM's names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from ostro.core.errors import RequestError, Unsupported
from ostro.core.messages.requests import MAX_LOGPROBS
from ostro.core.messages.text_requests import (
    ChatRequest,
    CompletionRequest,
    ReasoningEffort,
    TextRequest,
)
from ostro.entrypoints.api.openai.constraints import (
    Grammar,
    ResponseFormat,
    StructuredOutputs,
    constraint_of,
)
from ostro.entrypoints.api.openai.messages import Message, read_messages
from ostro.entrypoints.api.openai.peer_fields import ACCEPTED, EXTENSIONS, REJECTED
from ostro.entrypoints.api.openai.thinking import (
    Level,
    ReasoningConfig,
    agreed,
    read_thinking,
)
from ostro.entrypoints.api.openai.tools import read_chat_tools, read_choice
from ostro.entrypoints.operations.documents.metadata import Metadata
from ostro.entrypoints.operations.requests.model_body import ModelBody

CACHE = "the prefix cache finds repeated prefixes by itself"
NO_LIMIT = 2**31
"""A limit on generated tokens beyond all contexts, which bound it."""


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Additional contents of a stream. Obfuscation, random padding of events, is not supported."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class PromptCacheOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How OpenAI caches a prompt."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m"] | None = None


class TextBody(ModelBody, kw_only=True):
    """The fields that chats and completions share.

    `logits_processors` are parameters of installed logits processors by name; `processors` is its
    older name. `repeat_penalty` and `n_predict` (llama.cpp), of which -1 is no limit, are other
    names of `repetition_penalty` and `max_tokens`, `regex` and `no_stop_trim` (SGLang) of
    `guided_regex` and `include_stop_str_in_output`. One of the constraints of the output may be
    present.
    """

    accepted: ClassVar[Mapping[str, str]] = {**ModelBody.accepted, **ACCEPTED}

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
    regex: str | None = None
    repeat_penalty: float | None = None
    n_predict: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    cache_prompt: bool | None = None
    guided_decoding_backend: str | None = None
    length_penalty: float | None = None
    no_stop_trim: bool | None = None
    id_slot: int | None = None
    request_id: str | None = None
    return_hidden_states: Literal[False] | None = None
    return_token_ids: Literal[False] | None = None
    return_tokens_as_token_ids: Literal[False] | None = None
    use_beam_search: Literal[False] | None = None
    rid: str | None = None
    skip_special_tokens: Literal[True] | None = None
    spaces_between_special_tokens: bool | None = None
    timings_per_token: bool | None = None

    @property
    def shows_reasoning(self) -> bool:
        """Whether the response contains the text of the reasoning."""
        return True

    @property
    def limits(self) -> list[tuple[str, int | None]]:
        """The limits on generated tokens by their names."""
        predicted = None if self.n_predict == -1 else self.n_predict
        return [("max_tokens", self.max_tokens), ("n_predict", predicted)]

    @property
    def limit(self) -> int | None:
        """The limit on generated tokens. Raises RequestError for limits that differ."""
        limit: int | None = agreed(*self.limits)
        return NO_LIMIT if limit is None and self.n_predict == -1 else limit

    def text_fields(self) -> dict[str, Any]:
        """Return the fields of a `TextRequest` with these values. Raises RequestError."""
        if self.processors is not None and self.logits_processors is not None:
            raise RequestError(
                "processors is the older name of logits_processors; use logits_processors alone",
                param="processors",
            )
        return {
            **{name: getattr(self, name) for name in SHARED},
            "max_tokens": self.limit,
            "repetition_penalty": agreed(
                ("repetition_penalty", self.repetition_penalty),
                ("repeat_penalty", self.repeat_penalty),
            ),
            "include_stop_str_in_output": agreed(
                ("include_stop_str_in_output", self.include_stop_str_in_output),
                ("no_stop_trim", self.no_stop_trim),
            ),
            "stop": [self.stop] if isinstance(self.stop, str) else self.stop or (),
            "stop_token_ids": self.stop_token_ids or (),
            "logit_bias": read_bias(self.logit_bias or {}),
            "logits_processors": self.logits_processors or self.processors or {},
            "constraint": constraint_of(self),
        }


class ChatBody(TextBody, kw_only=True):
    """A conversation that the assistant continues.

    `max_completion_tokens` is the newer name of `max_tokens`. `thinking_token_budget` (vLLM) and
    `thinking_budget_tokens` (llama.cpp) are other names of `thinking_budget`. `think` (Ollama),
    `enable_thinking` and `reasoning` (OpenRouter) state how the model reasons, as
    `reasoning_effort` does. `include_reasoning` leaves the text of the reasoning out if false.
    `documents` are those of `chat_template_kwargs`.
    """

    accepted: ClassVar[Mapping[str, str]] = {
        **TextBody.accepted,
        "add_special_tokens": "the chat template writes the control tokens",
        "best_of": "each choice is drawn once",
        "echo": "the response has the generated message only",
        "keep_alive": "models stay in memory until the server stops",
        "parse_tool_calls": "calls are apart from the text",
        "prompt_cache_key": CACHE,
        "prompt_cache_options": CACHE,
        "prompt_cache_retention": CACHE,
        "reasoning_format": "reasoning is apart from the text",
        "safety_identifier": ModelBody.accepted["user"],
        "separate_reasoning": "reasoning is apart from the text",
        "stream_reasoning": "reasoning is streamed as it is generated",
        "verbosity": "open models have no setting of verbosity; ask for it in a message",
    }
    echoed: ClassVar[Mapping[str, str]] = {
        "metadata": "it belongs to stored completions",
        "service_tier": "the server has one tier, `default`",
    }
    unsupported: ClassVar[Mapping[str, str]] = {
        **REJECTED,
        "audio": "audio output; use /v1/audio/speech",
        "function_call": "the predecessor of tool_choice; use tool_choice",
        "functions": "the predecessor of tools; use tools",
        "moderation": "moderation",
        "prediction": "predicted output",
        "web_search_options": "web search",
    }
    extensions: ClassVar[frozenset[str]] = EXTENSIONS - {"response_format"} | frozenset(
        "best_of documents echo keep_alive parse_tool_calls reasoning_format".split()
    )

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
    think: bool | Level | None = None
    enable_thinking: bool | None = None
    reasoning: ReasoningConfig | None = None
    include_reasoning: bool | None = None
    documents: list[dict[str, Any]] | None = None
    add_special_tokens: Literal[False] | None = None
    best_of: Literal[1] | None = None
    parse_tool_calls: Literal[True] | None = None
    reasoning_format: Literal["auto", "deepseek"] | None = None
    echo: Literal[False] | None = None
    keep_alive: int | float | str | None = None
    separate_reasoning: Literal[True] | None = None
    stream_reasoning: bool | None = None

    @property
    def shows_reasoning(self) -> bool:
        """Whether the response contains the text of the reasoning."""
        excluded = self.reasoning is not None and self.reasoning.exclude
        return self.include_reasoning is not False and not excluded

    @property
    def limits(self) -> list[tuple[str, int | None]]:
        """The limits on generated tokens by their names."""
        return [("max_completion_tokens", self.max_completion_tokens), *super().limits]

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
        calls = read_choice(self.tool_choice)
        thinking = read_thinking(self)
        documents = {} if self.documents is None else {"documents": self.documents}
        return ChatRequest(
            **self.text_fields(),
            messages=read_messages(self.messages),
            logprobs=read_logprobs(self.logprobs, self.top_logprobs),
            tools=read_chat_tools(self.tools),
            tool_choice=calls.mode,
            allowed_tools=calls.tools,
            parallel_tool_calls=self.parallel_tool_calls,
            reasoning_effort=thinking.effort,
            thinking_budget=thinking.budget,
            chat_template_kwargs={**documents, **thinking.options},
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
        )


class CompletionBody(TextBody, kw_only=True):
    """Prompts to continue: text or token ids, one or several.

    Control tokens in a text become their ids, unless `parse_special` is false; with a `suffix` they
    are text, unless it is true.
    """

    unsupported: ClassVar[Mapping[str, str]] = {
        **REJECTED,
        "metadata": "metadata of completions; use /v1/chat/completions",
        "service_tier": "a service tier of completions; use /v1/chat/completions",
        "store": "storing completions of prompts; use /v1/chat/completions",
    }
    extensions: ClassVar[frozenset[str]] = EXTENSIONS | {"parse_special"}

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    parse_special: bool | None = None
    best_of: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    def to_request(self) -> CompletionRequest:
        """Return the request. Raises as that of a chat."""
        check_stream(self)
        if self.stream and self.best_of is not None and self.best_of > (self.n or 1):
            raise RequestError("best_of greater than n cannot be streamed", param="best_of")
        return CompletionRequest(
            **self.text_fields(),
            prompts=read_prompts(self.prompt),
            logprobs=self.logprobs,
            echo=self.echo,
            suffix=self.suffix,
            parse_special=self.parse_special,
            best_of=self.best_of,
        )


SHARED = sorted(set(TextRequest.__struct_fields__) & set(TextBody.__struct_fields__))
"""Fields of a body that mean the same in a request."""


def read_logprobs(logprobs: bool | None, top_logprobs: int | None) -> int | None:
    """Return `logprobs` of a `TextRequest`. Raises RequestError for a wrong `top_logprobs`."""
    if not logprobs:
        if top_logprobs is not None:
            raise RequestError("top_logprobs needs logprobs=true", param="top_logprobs")
        return None
    if not 0 <= (top_logprobs or 0) <= MAX_LOGPROBS:
        raise RequestError(f"top_logprobs is not within 0..{MAX_LOGPROBS}", param="top_logprobs")
    return top_logprobs or 0


def read_bias(bias: Mapping[str, float]) -> dict[int, float]:
    """Return the bias by token id; keys in JSON are texts. Raises RequestError for other keys."""
    for key in bias:
        if not (key.isascii() and key.isdigit() and len(key) < 12):
            raise RequestError(f"{key!r:.40} is not a token id", param="logit_bias")
    return {int(key): value for key, value in bias.items()}


def read_prompts(prompt: str | Sequence[str | int | list[int]]) -> list[str | list[int]]:
    """Return the prompts, each text or token ids. Raises RequestError for a mixture."""
    if isinstance(prompt, str):
        return [prompt]
    ids = [item for item in prompt if isinstance(item, int)]
    if prompt and len(ids) == len(prompt):
        return [ids]
    texts = [item for item in prompt if isinstance(item, str)]
    lists = [item for item in prompt if isinstance(item, list)]
    if not prompt or len(prompt) not in (len(texts), len(lists)):
        raise RequestError(
            "expected text, a list of texts, token ids, or a list of lists of token ids as prompt",
            param="prompt",
        )
    return [*texts, *lists]


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
