"""Generations as Anthropic's messages and events, from scripted events."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from echo.generation import SCRIPT, ScriptedGeneration

from ostro.errors import ContextLengthExceeded
from ostro.pipelines import ChoiceEnd, Event, Text, ToolCallArguments, ToolCallStart, Usage
from ostro.plugins.apis.anthropic.stream import MessageAnswer


def answer(events: Sequence[Event], **options: Any) -> MessageAnswer:
    usage = Usage(prompt=10, cached=4, completion=options.pop("completion", 7))
    script: Any = ScriptedGeneration(events, usage=usage)
    return MessageAnswer(id="msg_1", generation=script, **{"max_tokens": 7, **options})


def streamed(events: Sequence[Event], **options: Any) -> list[dict[str, Any]]:
    async def read() -> list[Any]:
        return [event async for event in answer(events, **options).stream()]

    found: list[dict[str, Any]] = msgspec.to_builtins(asyncio.run(read()))
    return found


def whole(events: Sequence[Event], **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(asyncio.run(answer(events, **options).collect()))
    return found


def test_thinking_text_and_tool_calls_are_blocks_in_order() -> None:
    found = whole(SCRIPT)
    thinking, text, weather, time = found["content"]
    assert thinking["type"] == "thinking" and thinking["thinking"] == "The user wants Paris."
    assert len(thinking["signature"]) == 64
    assert text == {"type": "text", "text": "Let me see.", "citations": None}
    assert weather == {
        "type": "tool_use",
        "id": "call_1",
        "name": "weather",
        "input": {"city": "Paris"},
    }
    assert time["input"] == {} and time["id"] == "call_2"
    assert (found["stop_reason"], found["stop_sequence"]) == ("tool_use", None)
    assert found["usage"] == {
        "input_tokens": 6,
        "cache_read_input_tokens": 4,
        "cache_creation_input_tokens": 0,
        "output_tokens": 7,
        "service_tier": "standard",
    }


def test_events_have_the_order_of_the_client() -> None:
    events = streamed(SCRIPT)
    names = [event["type"] for event in events]
    assert names[:2] == ["message_start", "ping"]
    assert names[-2:] == ["message_delta", "message_stop"]
    start = events[0]["message"]
    assert start["content"] == [] and start["stop_reason"] is None
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == 7
    blocks = [
        (event["type"].removeprefix("content_block_"), event["index"]) for event in events[2:-2]
    ]
    assert blocks == [
        ("start", 0), ("delta", 0), ("delta", 0), ("delta", 0), ("stop", 0),
        ("start", 1), ("delta", 1), ("delta", 1), ("stop", 1),
        ("start", 2), ("delta", 2), ("start", 3), ("delta", 2), ("delta", 3), ("stop", 2),
        ("stop", 3),
    ]  # fmt: skip
    kinds = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
    assert kinds == [
        *["thinking_delta"] * 2,
        "signature_delta",
        *["text_delta"] * 2,
        *["input_json_delta"] * 3,
    ]


def test_omitted_thinking_has_a_signature_only() -> None:
    shown, hidden = whole(SCRIPT)["content"][0], whole(SCRIPT, shows_thinking=False)["content"][0]
    assert hidden == {**shown, "thinking": ""}
    events = streamed(SCRIPT, shows_thinking=False)
    assert "wants Paris" not in str(events) and shown["signature"] in str(events)


@pytest.mark.parametrize(
    ("end", "completion", "reason", "sequence"),
    [
        (ChoiceEnd(finish="stop", stopped_by=257), 3, "end_turn", None),
        (ChoiceEnd(finish="stop", stopped_by="END"), 3, "stop_sequence", "END"),
        (ChoiceEnd(finish="length"), 7, "max_tokens", None),
        (ChoiceEnd(finish="length"), 3, "model_context_window_exceeded", None),
    ],
)
def test_stop_reasons(end: ChoiceEnd, completion: int, reason: str, sequence: str | None) -> None:
    script = [Text(text="a"), end]
    found = whole(script, completion=completion)
    assert (found["stop_reason"], found["stop_sequence"]) == (reason, sequence)
    assert streamed(script, completion=completion)[-2]["delta"] == {
        "stop_reason": reason,
        "stop_sequence": sequence,
    }


def test_malformed_arguments_stay_readable() -> None:
    call = ToolCallStart(call=0, id="1", name="f")
    for text in ('{"a": ', "[1]", '"x"'):
        script = [call, ToolCallArguments(call=0, text=text), ChoiceEnd(finish="length")]
        assert whole(script)["content"][0]["input"] == {"INVALID_JSON": text}


def test_an_empty_answer_has_no_blocks() -> None:
    assert whole([ChoiceEnd(finish="stop")])["content"] == []
    names = [event["type"] for event in streamed([ChoiceEnd(finish="stop")])]
    assert names == ["message_start", "ping", "message_delta", "message_stop"]


def test_the_generation_is_closed() -> None:
    one = answer(SCRIPT)
    asyncio.run(one.collect())
    script: Any = one.generation
    assert script.closed == 1

    async def leave() -> None:
        events = two.stream()
        await anext(events)
        await events.aclose()

    two = answer(SCRIPT)
    asyncio.run(leave())
    assert two.generation.closed  # type: ignore[attr-defined]


def test_each_block_ends_once() -> None:
    events = [
        ToolCallStart(call=0, id="a", name="f"),
        ToolCallStart(call=1, id="b", name="g"),
        ToolCallArguments(call=0, text="{}"),
        Text(text="then"),
        ToolCallStart(call=2, id="c", name="h"),
        ChoiceEnd(finish="tool_calls"),
    ]
    steps = [
        (event["type"].removeprefix("content_block_"), event["index"])
        for event in streamed(events)
        if event["type"].startswith("content_block_") and "delta" not in event["type"]
    ]
    assert steps == [
        *(("start", 0), ("start", 1), ("stop", 0), ("stop", 1)),
        *(("start", 2), ("stop", 2), ("start", 3), ("stop", 3)),
    ]


@pytest.mark.parametrize("read", ["stream", "collect"])
def test_an_overflow_found_by_the_engine_has_anthropics_words(read: str) -> None:
    error = ContextLengthExceeded.of(64, 60, to_generate=6, advice="load with more --memory")
    script: Any = ScriptedGeneration([], error)
    message = MessageAnswer(id="msg_1", generation=script, max_tokens=7)

    async def run() -> None:
        if read == "collect":
            await message.collect()
        async for _ in message.stream():
            pass

    words = "^prompt is too long: 66 tokens > 64 maximum; shorten it, or load with more --memory$"
    with pytest.raises(ContextLengthExceeded, match=words) as raised:
        asyncio.run(run())
    assert raised.value.param is None
