"""Every parameter of OpenAI's SDK is honoured, echoed, or rejected by name."""

from __future__ import annotations

import re
from typing import Any

import pytest

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def check_refused(response: Any, param: str, code: str, hint: str = "") -> None:
    assert response.status_code == 400, response.text[:300]
    error = response.json()["error"]
    assert (re.split(r"[.[]", error["param"])[0], error["code"]) == (param, code), error
    assert hint in error["message"], error


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"audio": {"voice": "a", "format": "wav"}}, "/v1/audio/speech"),
        ({"functions": []}, "use tools"),
        ({"function_call": "auto"}, "use tool_choice"),
        ({"moderation": {"model": "omni"}}, "moderation is not supported"),
        ({"prediction": {"type": "content", "content": "a"}}, "not supported"),
        ({"web_search_options": {}}, "web search"),
        ({"mm_processor_kwargs": {}}, "media"),
        ({"modalities": ["text", "audio"]}, "text only"),
        ({"service_tier": "flex"}, "use auto"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "use false"),
        ({"tools": [TOOL], "parallel_tool_calls": False}, "processor grammar, which is not"),
        ({"tools": [TOOL], "tool_choice": "required"}, "auto and none"),
    ],
)
def test_rejected_by_name(server: Any, fields: dict[str, Any], hint: str) -> None:
    name = next(reversed(fields))
    check_refused(server.chat(**fields), name, "unsupported", hint)


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {}},
        {"response_format": {"type": "yaml"}},
        {"reasoning_effort": "banana"},
        {"stream_options": {"include_usage": True}},
        {"stream": True, "stream_options": {"usage": True}},
        {"tool_choice": "auto"},
        {"tool_choice": "none"},
        {"parallel_tool_calls": True},
        {"max_tokens": 2, "max_completion_tokens": 3},
        {"thinking_token_budget": 1, "thinking_budget": 2},
        {"thinking_budget_tokens": 1, "thinking_budget": 2},
        {"thinking_budget": -1},
        {"modalities": ["smell"]},
        {"store": "yes"},
        {"metadata": {"a": 1}},
        {"metadata": {"a": "x" * 513}},
        {"metadata": {"a" * 65: "x"}},
        {"metadata": {str(i): "x" for i in range(17)}},
        {"verbosity": "loud"},
        {"prompt_cache_key": 1},
        {"prompt_cache_options": {"mode": "never"}},
        {"prompt_cache_options": {"tll": "30m"}},
        {"prompt_cache_retention": "1h"},
        {"safety_identifier": "x" * 129},
        {"service_tier": 1},
        {"user": 1},
        {"processors": []},
    ],
)
def test_wrong_values(server: Any, fields: dict[str, Any]) -> None:
    check_refused(server.chat(**fields), next(reversed(fields)), "invalid_request_error")


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt_cache_key": "a"},
        {"prompt_cache_options": {"mode": "explicit", "ttl": "30m"}},
        {"prompt_cache_retention": "24h"},
        {"safety_identifier": "a", "user": "b"},
        {"verbosity": "low"},
        {"store": False},
        {"modalities": ["text"]},
        {"response_format": {"type": "text"}},
        {"reasoning_effort": "none"},
        {"stream": False},
        {"max_tokens": 100, "max_completion_tokens": 100},
    ],
)
def test_accepted_values_change_nothing(server: Any, fields: dict[str, Any]) -> None:
    plain, given = server.chat().json(), server.chat(**fields).json()
    assert given["choices"] == plain["choices"] and given.keys() == plain.keys()


def test_echoed(server: Any) -> None:
    answer = server.chat(metadata={"a": "b"}, service_tier="auto").json()
    assert (answer["metadata"], answer["service_tier"]) == ({"a": "b"}, "default")
    body = {"messages": [USER], "service_tier": "default"}
    events = server.events("/v1/chat/completions", **body)
    assert {event["service_tier"] for event in events} == {"default"}


@pytest.mark.parametrize("name", ["metadata", "service_tier", "store"])
def test_fields_of_chats_are_rejected_for_completions(server: Any, name: str) -> None:
    value = {"metadata": {}, "service_tier": "auto", "store": False}[name]
    check_refused(server.complete(**{name: value}), name, "unsupported", "/v1/chat/completions")


def test_no_reasoning_reaches_the_template(server: Any) -> None:
    """The template of the echo model reads enable_thinking."""
    think = {"chat_template_kwargs": {"enable_thinking": True}}
    assert "<think>" in server.chat(reasoning_effort="low", **think).text
    plain = server.chat(reasoning_effort="none").json()
    assert "<think>" not in str(plain)


def test_parallel_tool_calls_with_tools(server: Any) -> None:
    assert "look" in server.chat(tools=[TOOL], parallel_tool_calls=True).text


def test_processors_reach_the_engine(server: Any) -> None:
    """The engine refuses unknown ones, and checks their parameters."""
    assert server.chat(processors={"shout": {"by": 2}}).status_code == 200
    assert server.echo.seen[-1].sampling.processors == {"shout": {"by": 2}}
    assert server.complete(processors={"shout": 1}).status_code == 200
    assert server.echo.seen[-1].sampling.processors == {"shout": 1}
