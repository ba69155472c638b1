"""Completions in the form of llama.cpp's server.

The fields are those of https://github.com/ggml-org/llama.cpp/tree/master/tools/server; fields that
are not listed here are errors.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ostro import Route
from ostro.http import DATA_EVENTS, Caller, Generation, Operations
from ostro.pipelines import ChoiceEnd, CompletionRequest, Text


class LlamaCppRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A prompt to continue. An `n_predict` of -1 ends with the model or with the context."""

    accepted: ClassVar[dict[str, str]] = {"cache_prompt": "the prefix cache serves all requests"}

    prompt: str | list[int]
    n_predict: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: list[str] | None = None
    ignore_eos: bool | None = None
    cache_prompt: bool | None = None
    stream: bool = False


class LlamaCppCompletion(msgspec.Struct, kw_only=True):
    """A text: whole with its figures, or a piece of a stream, whose last event has the figures."""

    content: str
    stop: bool = False
    model: str | UnsetType = UNSET
    stop_type: Literal["eos", "limit", "word"] | UnsetType = UNSET
    stopping_word: str | UnsetType = UNSET
    tokens_evaluated: int | UnsetType = UNSET
    tokens_cached: int | UnsetType = UNSET
    tokens_predicted: int | UnsetType = UNSET


async def complete(
    operations: Operations, caller: Caller, body: LlamaCppRequest
) -> LlamaCppCompletion | AsyncGenerator[LlamaCppCompletion, None]:
    """Continue a prompt."""
    request = CompletionRequest(
        prompts=[body.prompt],
        max_tokens=None if body.n_predict == -1 else body.n_predict,
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        min_p=body.min_p,
        repetition_penalty=body.repeat_penalty,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        seed=body.seed,
        stop=body.stop or (),
        ignore_eos=body.ignore_eos,
    )
    generation = await operations.complete(request, caller)
    if body.stream:
        return stream(generation)
    [choice] = (await generation.collect()).choices
    end = ChoiceEnd(finish=choice.finish or "stop", stopped_by=choice.stopped_by)
    return completion(choice.text, end, generation)


async def stream(generation: Generation) -> AsyncGenerator[LlamaCppCompletion, None]:
    """Yield the pieces of a text, and its end."""
    try:
        async for event in generation:
            if isinstance(event, Text):
                yield LlamaCppCompletion(content=event.text)
            elif isinstance(event, ChoiceEnd):
                yield completion("", event, generation)
    finally:
        await generation.aclose()


def completion(text: str, end: ChoiceEnd, generation: Generation) -> LlamaCppCompletion:
    """Return the completion with a text and the figures of its generation."""
    word = end.stopped_by if isinstance(end.stopped_by, str) else ""
    usage = generation.usage
    return LlamaCppCompletion(
        content=text,
        stop=True,
        model=generation.model,
        stop_type="word" if word else "limit" if end.finish == "length" else "eos",
        stopping_word=word,
        tokens_evaluated=usage.prompt,
        tokens_cached=usage.cached,
        tokens_predicted=usage.completion,
    )


ROUTES = (
    Route(
        name="POST /completion",
        handler=complete,
        request=LlamaCppRequest,
        response=LlamaCppCompletion,
        events=LlamaCppCompletion,
        event_format=DATA_EVENTS,
        example={"prompt": "Once upon a time", "n_predict": 32},
    ),
)
