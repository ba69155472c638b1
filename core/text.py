"""What is asked of a text pipeline and what it answers: plain data, shared by all entry points.

The requests are those of OpenAI's chat and completions routes, with the extra sampling fields under
the names that vLLM gives them. `parse` refuses what it does not know: a misspelled field must not
be dropped silently. The fields that name a model and its adapters (`ModelTarget`) are the same on
all routes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from ostro.core.engine.request import AdapterRef, Finish, TokenLogprobs
from ostro.core.errors import RequestError, Unsupported, nearest

NEUTRAL = frozenset(
    "metadata parallel_tool_calls prompt_cache_key prompt_cache_retention safety_identifier "
    "service_tier store user verbosity".split()
)
"""Fields of OpenAI's requests that change no token here and may be given."""

LATER: Mapping[str, str] = {
    "audio": "spoken answers",
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
"""Fields that would change the answer and are not implemented, with what they ask for."""


class AdapterChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An adapter by its name or by its generation, and how much of it."""

    name: str | None = None
    generation: str | None = None
    scale: float | None = None


class ModelTarget(msgspec.Struct, kw_only=True):
    """Whom a request is for: a model, and the adapters that apply to it, a text being a name.

    `model` may name an adapter as well, alone or behind its model and a colon.
    """

    model: str | None = None
    adapters: list[str | AdapterChoice] | None = None
    adapter: str | AdapterChoice | None = None


class StreamOptions(msgspec.Struct, kw_only=True):
    """What a stream carries beside the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class ContentPart(msgspec.Struct, kw_only=True):
    """One part of a message's content: text, or a medium by its address or, for sound, its data.

    Types as OpenAI's API and vLLM's have them: text, image_url, input_audio, audio_url, video_url.
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


class GenerationRequest(ModelTarget, kw_only=True):
    """What chat and completion requests have in common. None means: the default."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None
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
    prompt_logprobs: int | None = None
    cache_salt: str | None = None
    priority: int | None = None
    response_format: dict[str, Any] | None = None


class ChatRequest(GenerationRequest, kw_only=True):
    """A conversation to be continued by the assistant."""

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
    """Prompts to be continued: text or token ids, one or several."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None


R = TypeVar("R", bound=msgspec.Struct)


def parse(body: Mapping[str, Any], kind: type[R]) -> R:
    """Read a request from parsed JSON. A field that is null counts as absent.

    Raises RequestError naming the field that is unknown or mistyped, Unsupported for one that asks
    for what is not implemented.
    """
    known = kind.__struct_fields__
    for name, value in body.items():
        if name in known or name in NEUTRAL or value is None:
            continue
        if name in LATER:
            raise Unsupported(f"{name}: there is no support for {LATER[name]} yet", param=name)
        near = nearest(name, known, n=1)
        raise RequestError(f"unknown field {name[:80]!r}{near}", param=name[:80])
    try:
        given = {name: body[name] for name in known if body.get(name) is not None}
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        field = where.strip("`").lstrip(".")
        if not field and (missing := what.partition("required field `")[2]):
            field = missing.strip("`")
        raise RequestError(f"{field}: {what}" if field else what, param=field or None) from None


class Usage(msgspec.Struct, kw_only=True):
    """Tokens that a request has taken so far; `cached` of its prompt came from the prefix cache."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0


class TextDelta(msgspec.Struct, kw_only=True):
    """The next piece of one choice of the answer.

    Where logprobs were asked for, `tokens` are the ones whose text starts in this piece, `logprobs`
    theirs (None for a prompt's first), and `offsets` where each starts, in characters from the
    choice's beginning. `stopped_by` is the stop string or token id that ended it.
    """

    index: int = 0
    text: str = ""
    tokens: list[int] = []
    logprobs: list[TokenLogprobs | None] | None = None
    offsets: list[int] = []
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish: Finish | None = None
    stopped_by: str | int | None = None


class Answer(Protocol):
    """An answer that is being generated: iterate its deltas once, close it to stop early.

    `generations` are those of the adapters that it is generated with, as the engine tells them;
    None where the request asks for no adapters.
    """

    usage: Usage
    choices: int
    generations: list[str] | None

    def __aiter__(self) -> AsyncIterator[TextDelta]: ...

    async def aclose(self) -> None: ...


class TextPipeline(Protocol):
    """A text pipeline as entry points see it.

    `adapters` are what a request asks for; `template` is the source of the chat template that takes
    the place of the model's own.
    """

    name: str
    context: int

    async def chat(
        self,
        request: ChatRequest,
        *,
        adapters: Sequence[AdapterRef] = (),
        template: str | None = None,
    ) -> Answer: ...

    async def complete(
        self, request: CompletionRequest, *, adapters: Sequence[AdapterRef] = ()
    ) -> Answer: ...

    def spell(self, token: int) -> str:
        """The text of one token, special tokens included."""
