"""Fields of other servers on OpenAI's routes: honoured, accepted without effect, or refused."""

from __future__ import annotations

from typing import Any

import pytest
from echo.model import TEMPLATE
from echo.server import Running, Start, chat_message

HI = [chat_message("hi")]


@pytest.fixture(scope="module")
def thinker(start: Start) -> Running:
    """A server that finds reasoning in what it answers; its template reads enable_thinking."""
    return start(template=TEMPLATE)


def asked(server: Running, path: str, **fields: Any) -> Any:
    """The request to the engine that fields become, without its id."""
    body = {"prompt": "hi"} if path == "/v1/completions" else {"messages": HI}
    answer = server.post(path, **body, **fields)
    assert answer.status_code == 200, answer.text
    assert "x-ostro-ignored" not in answer.headers
    request = server.echo.seen[-1]
    return request.tokens, request.sampling


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"repeat_penalty": 1.5}, {"repetition_penalty": 1.5}),
        ({"repeat_penalty": 1.5, "repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
        ({"n_predict": 5}, {"max_tokens": 5}),
        ({"n_predict": -1}, {"max_tokens": 4096}),
        ({"n_predict": -1, "max_tokens": 7}, {"max_tokens": 7}),
        ({"cache_prompt": False, "id_slot": -1}, {}),
        ({"request_id": "a", "rid": "b"}, {}),
        ({"skip_special_tokens": True, "spaces_between_special_tokens": False}, {}),
        ({"return_tokens_as_token_ids": False, "timings_per_token": True}, {}),
        ({"return_hidden_states": False, "return_token_ids": False}, {}),
        ({"use_beam_search": False, "length_penalty": 1.5}, {}),
        ({"guided_decoding_backend": "xgrammar"}, {}),
        ({"no_stop_trim": True}, {"include_stop_str_in_output": True}),
    ],
)
def test_names_of_other_servers(
    server: Running, path: str, theirs: dict[str, Any], ours: dict[str, Any]
) -> None:
    assert asked(server, path, **theirs) == asked(server, path, **ours)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"think": True}, {"chat_template_kwargs": {"enable_thinking": True}}),
        ({"enable_thinking": True}, {"chat_template_kwargs": {"enable_thinking": True}}),
        ({"reasoning": {"enabled": True}}, {"chat_template_kwargs": {"enable_thinking": True}}),
        ({"think": False}, {"reasoning_effort": "none"}),
        ({"enable_thinking": False}, {"reasoning_effort": "none"}),
        ({"reasoning": {"enabled": False}}, {"reasoning_effort": "none"}),
        ({"think": "high"}, {"reasoning_effort": "high"}),
        ({"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}),
        (
            {"reasoning": {"max_tokens": 9}, "think": True},
            {"thinking_budget": 9, "chat_template_kwargs": {"enable_thinking": True}},
        ),
        (
            {"think": True, "chat_template_kwargs": {"enable_thinking": False}},
            {"chat_template_kwargs": {"enable_thinking": False}},
        ),
        ({"separate_reasoning": True, "stream_reasoning": False}, {}),
        ({"add_special_tokens": False, "echo": False, "keep_alive": "5m"}, {}),
        ({"include_reasoning": True, "reasoning": {"exclude": False}}, {}),
        ({"best_of": 1, "parse_tool_calls": True, "reasoning_format": "deepseek"}, {}),
    ],
)
def test_fields_of_chats(thinker: Running, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    path = "/v1/chat/completions"
    assert asked(thinker, path, **theirs) == asked(thinker, path, **ours)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"repeat_penalty": 1.5, "repetition_penalty": 1.2}, "repetition_penalty"),
        ({"n_predict": 5, "max_tokens": 6}, "max_completion_tokens"),
        ({"n_predict": -2}, "n_predict"),
        ({"think": True, "enable_thinking": False}, "enable_thinking"),
        ({"think": "high", "reasoning_effort": "low"}, "reasoning_effort"),
        ({"think": False, "reasoning_effort": "low"}, "reasoning_effort"),
        ({"think": True, "reasoning_effort": "none"}, "reasoning_effort"),
        ({"think": "much"}, "think"),
        ({"reasoning": {"max_tokens": 1}, "thinking_budget": 2}, "thinking_budget"),
        ({"reasoning": {"effort": "banana"}}, "reasoning.effort"),
        ({"regex": "a", "guided_regex": "b"}, "regex"),
        # What would change the output, and cannot be done.
        ({"skip_special_tokens": False}, "skip_special_tokens"),
        ({"separate_reasoning": False}, "separate_reasoning"),
        ({"add_special_tokens": True}, "add_special_tokens"),
        ({"echo": True}, "echo"),
        ({"allowed_token_ids": [1]}, "allowed_token_ids"),
        ({"bad_words": ["a"]}, "bad_words"),
        ({"chat_template": "a"}, "chat_template"),
        ({"ebnf": "a"}, "ebnf"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"best_of": 2}, "best_of"),
        ({"lora": [{"id": 0, "scale": 1.0}]}, "lora"),
        ({"lora_path": "a"}, "lora_path"),
        ({"n_probs": 3}, "n_probs"),
        ({"no_stop_trim": True, "include_stop_str_in_output": False}, "include_stop_str_in_output"),
        ({"parse_tool_calls": False}, "parse_tool_calls"),
        ({"reasoning_format": "none"}, "reasoning_format"),
        ({"return_hidden_states": True}, "return_hidden_states"),
        ({"return_token_ids": True}, "return_token_ids"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
    ],
)
def test_contradictions_and_effects_that_are_lacking(
    server: Running, fields: dict[str, Any], param: str
) -> None:
    answer = server.chat(**fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize("fields", [{"include_reasoning": False}, {"reasoning": {"exclude": True}}])
def test_reasoning_may_be_left_out(thinker: Running, fields: dict[str, Any]) -> None:
    said = "<think>hm</think>yes"
    plain = thinker.chat(said, think=True).json()["choices"][0]["message"]
    assert plain["reasoning"] == plain["reasoning_content"] != ""
    hidden = thinker.chat(said, think=True, **fields).json()
    message = hidden["choices"][0]["message"]
    assert message["content"] == plain["content"] and not message.keys() & {
        "reasoning",
        "reasoning_content",
    }
    assert hidden["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    body = {"messages": [chat_message(said)], "think": True}
    events = thinker.events("/v1/chat/completions", **body, **fields)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert not any("reasoning" in delta for delta in deltas)
    assert "".join(delta.get("content") or "" for delta in deltas) == plain["content"]
    assert deltas[0]["role"] == "assistant"
