"""Converts generations to Ollama's responses, whole or as lines of JSON."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from ostro.errors import ContextLengthExceeded
from ostro.http import Generation
from ostro.pipelines import (
    ChoiceEnd,
    Event,
    Reasoning,
    Text,
    TokenLogprobs,
    ToolCallArguments,
    ToolCallStart,
    token_name,
)
from ostro.plugins.apis.ollama.schema import (
    OllamaChatResponse,
    OllamaFunction,
    OllamaGenerateResponse,
    OllamaLogprob,
    OllamaMessage,
    OllamaTimings,
    OllamaTokenLogprob,
    OllamaToolCall,
)

MIN_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot express."""
LONG_PROMPT = "prompt too long; exceeded max context length by {excess} tokens"
LONG_INPUT = "the input length exceeds the context length"
TokenBytes = Callable[[int], bytes]


class Part(msgspec.Struct, kw_only=True):
    """A piece of a response. `finish` is the reason for its end."""

    text: str = ""
    thinking: str = ""
    tool_calls: list[OllamaToolCall] = []
    logprobs: list[OllamaLogprob] | None = None
    finish: str = ""


def joined(parts: Sequence[Part]) -> Part:
    """Return the pieces of a response as one."""
    logprobs = [each for part in parts for each in part.logprobs or ()]
    return Part(
        text="".join(part.text for part in parts),
        thinking="".join(part.thinking for part in parts),
        tool_calls=[call for part in parts for call in part.tool_calls],
        logprobs=logprobs if any(part.logprobs is not None for part in parts) else None,
        finish=parts[-1].finish if parts else "",
    )


Form = Callable[[Part, dict[str, Any]], OllamaTimings]
"""Makes a response of a part and the fields of `OllamaTimings`."""


def chat_form(part: Part, fields: dict[str, Any]) -> OllamaChatResponse:
    """Return a response of /api/chat."""
    message = OllamaMessage(
        role="assistant",
        content=part.text,
        thinking=part.thinking or UNSET,
        tool_calls=part.tool_calls or UNSET,
    )
    return OllamaChatResponse(**fields, message=message, logprobs=listed(part))


def generate_form(part: Part, fields: dict[str, Any]) -> OllamaGenerateResponse:
    """Return a response of /api/generate, which has no tool calls."""
    thinking = part.thinking or UNSET
    return OllamaGenerateResponse(
        **fields, response=part.text, thinking=thinking, logprobs=listed(part)
    )


def listed(part: Part) -> list[OllamaLogprob] | UnsetType:
    return UNSET if part.logprobs is None else part.logprobs


class ToolCalls:
    """Adds up the events of tool calls, whose arguments Ollama sends as one object."""

    def __init__(self) -> None:
        self.count, self.open = 0, False
        self.id, self.name, self.text = "", "", ""

    def start(self, event: ToolCallStart) -> Part:
        """Begin a call. Return the call before it."""
        before = self.end()
        self.open, self.id, self.name, self.text = True, event.id, event.name, ""
        return before

    def end(self) -> Part:
        """Return the current call, or its text if its arguments are not a JSON object."""
        if not self.open:
            return Part()
        self.open = False
        try:
            arguments = msgspec.json.decode(self.text or "{}", type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            return Part(text=f"{self.name}({self.text})")
        function = OllamaFunction(name=self.name, arguments=arguments, index=self.count)
        self.count += 1
        return Part(tool_calls=[OllamaToolCall(id=self.id, function=function)])


class Clock:
    """The durations of a request, in nanoseconds since the request was read."""

    def __init__(self) -> None:
        self.start = time.perf_counter_ns()
        self.first = 0

    def note_event(self) -> None:
        """Note the first event of the generation, which ends the evaluation of the prompt."""
        self.first = self.first or time.perf_counter_ns()

    def elapsed(self) -> int:
        """Return the nanoseconds since the request was read."""
        return time.perf_counter_ns() - self.start

    def fields(self, generation: Generation) -> dict[str, Any]:
        """Return the durations and token counts of a finished generation."""
        now, usage = time.perf_counter_ns(), generation.usage
        first = self.first or now
        return {
            "total_duration": now - self.start,
            "load_duration": 0,
            "prompt_eval_count": usage.prompt,
            "prompt_eval_duration": first - self.start,
            "eval_count": usage.completion,
            "eval_duration": now - first,
        }


@contextmanager
def own_words(words: str = LONG_PROMPT) -> Iterator[None]:
    """Let the error of a prompt or text beyond the context begin as Ollama's.

    Clients recognize it by these words, in which {excess} is the number of tokens too many.
    """
    try:
        yield
    except ContextLengthExceeded as error:
        if error.context is not None:
            error.args = (f"{words.format(excess=error.needed - error.context)}. {error}",)
        raise


async def parts(generation: Generation, clock: Clock) -> AsyncGenerator[Part, None]:
    """Yield a generation as parts, the last one with `finish`."""
    calls = ToolCalls()
    async with aclosing(generation):
        with own_words():
            async for event in generation:
                clock.note_event()
                part = part_of(event, calls, generation.token_bytes)
                if part != Part():
                    yield part


def part_of(event: Event, calls: ToolCalls, token_bytes: TokenBytes) -> Part:
    """Return the part of a response that an event stands for; it may be empty."""
    match event:
        case Text():
            return Part(text=event.text, logprobs=logprobs_of(event.logprobs, token_bytes))
        case Reasoning():
            return Part(thinking=event.text)
        case ToolCallStart():
            return calls.start(event)
        case ToolCallArguments():
            calls.text += event.text
            return Part()
        case ChoiceEnd():
            part = calls.end()
            part.finish = "stop" if event.finish == "tool_calls" else event.finish
            return part
    return Part()


def logprobs_of(
    entries: Sequence[TokenLogprobs | None] | None, token_bytes: TokenBytes
) -> list[OllamaLogprob] | None:
    """Return the log probabilities of tokens, None if they were not requested."""
    if entries is None:
        return None

    def fields(token: int, logprob: float) -> dict[str, Any]:
        piece = token_bytes(token)
        probability = max(logprob, MIN_LOGPROB)
        return {"token": token_name(piece), "logprob": probability, "bytes": list(piece)}

    return [
        OllamaLogprob(
            **fields(entry.token, entry.logprob),
            top_logprobs=[OllamaTokenLogprob(**fields(*pair)) for pair in entry.top] or UNSET,
        )
        for entry in entries
        if entry is not None
    ]


async def whole(generation: Generation, clock: Clock, model: str, form: Form) -> OllamaTimings:
    """Return the response of a whole generation."""
    part = joined([part async for part in parts(generation, clock)])
    end = {"done": True, "done_reason": part.finish, **clock.fields(generation)}
    return form(part, {**head(model), **end})


async def lines(
    generation: Generation, clock: Clock, model: str, form: Form
) -> AsyncGenerator[OllamaTimings, None]:
    """Yield the lines of a streamed generation. The last one has `done` and no text."""
    async with aclosing(parts(generation, clock)) as pieces:
        async for part in pieces:
            finish, part.finish = part.finish, ""
            if part != Part():
                yield form(part, head(model))
            if finish:
                end = {"done": True, "done_reason": finish, **clock.fields(generation)}
                yield form(Part(), {**head(model), **end})


def loaded(model: str, form: Form) -> OllamaTimings:
    """Return the response to a request without a prompt, which loads a model in Ollama."""
    return form(Part(), {**head(model), "done": True, "done_reason": "load"})


def head(model: str) -> dict[str, Any]:
    """Return the first fields of every response."""
    return {"model": model, "created_at": timestamp(time.time_ns())}


def timestamp(nanoseconds: int) -> str:
    """Return a time since 1970 in the form of RFC 3339, with nanoseconds."""
    seconds, rest = divmod(nanoseconds, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
