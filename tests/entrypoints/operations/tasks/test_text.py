"""The events of a generation, the completion they add up to, and their form in OpenAI's API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from echo.generation import SCRIPT

from ostro.core.messages.outputs import TokenLogprobs
from ostro.core.messages.text import ChoiceEnd, Event, Text, Usage
from ostro.entrypoints.api.openai.chat_choices import ChatChoices
from ostro.entrypoints.operations.tasks.text import ChoiceBuilder, Generation


class Events:
    """An answer of given events."""

    def __init__(self, events: Sequence[Event], choices: int = 1) -> None:
        self.events, self.choices, self.closed = events, choices, 0
        self.usage, self.generations = Usage(prompt=3, completion=2), None

    async def __aiter__(self) -> AsyncIterator[Event]:
        for event in self.events:
            yield event

    async def aclose(self) -> None:
        self.closed += 1


class Pipeline:
    def token_bytes(self, token: int) -> bytes:
        return b"<%d>" % token


def generation(*events: Event, choices: int = 1) -> tuple[Generation, Events]:
    answer = Events(events, choices)
    return Generation(answer, "m", Pipeline()), answer  # type: ignore[arg-type]


def test_a_generation_yields_the_events_of_the_answer() -> None:
    events = [Text("a"), Text("b"), ChoiceEnd("stop")]
    found, answer = generation(*events)

    async def read() -> list[Event]:
        async with aclosing(found):
            return [event async for event in found]

    assert asyncio.run(read()) == events
    assert answer.closed


def test_the_choices_of_a_completion_are_the_sums_of_their_events() -> None:
    entry = TokenLogprobs(token=5, logprob=-1.0)
    found, answer = generation(
        Text("x", index=1),
        Text("a", tokens=[5], logprobs=[entry], offsets=[0]),
        Text("b", tokens=[6], logprobs=[entry], offsets=[1]),
        ChoiceEnd("length"),
        ChoiceEnd("stop", "\n", index=1),
        choices=2,
    )
    done = asyncio.run(found.collect())
    first, second = done.choices
    assert (first.text, first.tokens, first.offsets) == ("ab", [5, 6], [0, 1])
    assert first.logprobs == [entry, entry] and first.finish == "length"
    assert (second.text, second.finish, second.stopped_by) == ("x", "stop", "\n")
    assert done.usage.prompt == 3 and done.model == "m" and answer.closed


def test_reasoning_and_tool_calls_are_parts_of_a_message() -> None:
    builder = ChoiceBuilder()
    for event in SCRIPT:
        builder.add(event)
    found = msgspec.to_builtins(ChatChoices(Pipeline().token_bytes).whole(builder.build()))
    message = found["message"]
    assert message["content"] == "Let me see."
    assert message["reasoning_content"] == "The user wants Paris."
    assert [(x["id"], x["function"]) for x in message["tool_calls"]] == [
        ("call_1", {"name": "weather", "arguments": '{"city": "Paris"}'}),
        ("call_2", {"name": "time", "arguments": "{}"}),
    ]


def test_the_chunks_of_a_stream_add_up_to_the_message() -> None:
    choices = ChatChoices(Pipeline().token_bytes)
    made = [choices.chunks(event, first=i == 0) for i, event in enumerate(SCRIPT)]
    chunks = [msgspec.to_builtins(chunk) for [chunk] in made]
    deltas = [chunk["delta"] for chunk in chunks]
    assert [delta.get("role") for delta in deltas] == ["assistant", *[None] * (len(SCRIPT) - 1)]
    assert "".join(x.get("reasoning_content", "") for x in deltas) == "The user wants Paris."
    assert "".join(x.get("content", "") for x in deltas) == "Let me see."
    calls: dict[int, dict[str, Any]] = {}
    for call in [call for delta in deltas for call in delta.get("tool_calls", [])]:
        if "id" in call:
            calls[call["index"]] = {"id": call["id"], "name": call["function"]["name"], "text": ""}
        calls[call["index"]]["text"] += call["function"]["arguments"]
    assert calls[0] == {"id": "call_1", "name": "weather", "text": '{"city": "Paris"}'}
    assert calls[1] == {"id": "call_2", "name": "time", "text": "{}"}
    ends = [chunk["finish_reason"] for chunk in chunks]
    assert ends == [*[None] * (len(SCRIPT) - 1), "tool_calls"]


@pytest.mark.parametrize("event", [Text(text="hi"), ChoiceEnd(finish="stop")])
def test_the_first_chunk_has_a_role_and_content(event: Event) -> None:
    [chunk] = ChatChoices(Pipeline().token_bytes).chunks(event, first=True)
    delta = msgspec.to_builtins(chunk)["delta"]
    assert delta == {"role": "assistant", "content": getattr(event, "text", "")}
