"""Anthropic's API as coding agents use it: context editing, deferred tools, unknown fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from echo.server import Running, Start

TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for m in messages %}{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}\n"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>\n"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}assistant\n{% endif %}"
)
"""A template that writes the thinking of all turns, and the inputs of calls."""
MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
CACHED = "[This result was removed to shorten the conversation.]"
TOOLS = [
    {"name": name, "input_schema": {"type": "object"}, "eager_input_streaming": False}
    for name in ("read", "write", "search")
]


@pytest.fixture(scope="module")
def server(start: Start) -> Running:
    """A server as `ostro serve` starts it: unknown fields are ignored."""
    return start(template=TEMPLATE, strict_fields=False)


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=server.url, api_key="none", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


def ask(server: Running, path: str = MESSAGES, **fields: Any) -> httpx.Response:
    """Post a request."""
    body = {"model": "echo", "messages": [{"role": "user", "content": "hi"}], **fields}
    if path == MESSAGES:
        body.setdefault("max_tokens", 400)
    return server.http.post(path, json=body, headers={"anthropic-version": "2023-06-01"})


def prompt(server: Running) -> str:
    """The last prompt of the engine, without control tokens."""
    return bytes(token for token in server.echo.seen[-1].tokens if token < 256).decode()


def turn(number: int, name: str = "read") -> list[dict[str, Any]]:
    """A turn of the user, with a thought, a call and its result."""
    call = {"type": "tool_use", "id": f"c{number}", "name": name, "input": {"path": f"in{number}"}}
    result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": f"out{number}"}
    thought = {"type": "thinking", "thinking": f"thought{number}", "signature": "s"}
    return [
        {"role": "user", "content": [{"type": "text", "text": f"ask{number}"}]},
        {"role": "assistant", "content": [thought, call]},
        {"role": "user", "content": [result]},
        {"role": "assistant", "content": [{"type": "text", "text": f"said{number}"}]},
    ]


TALK = [
    message
    for number, name in enumerate(("read", "write", "read", "search"))
    for message in turn(number, name)
] + [{"role": "user", "content": "and now?"}]
"""Four turns and a question."""


def edited(server: Running, *edits: Any, messages: Any = TALK) -> tuple[str, list[Any]]:
    """The prompt after edits, and what they did."""
    fields = {"messages": messages, "tools": TOOLS, "context_management": {"edits": [*edits]}}
    answer = ask(server, **fields)
    assert answer.status_code == 200, answer.text
    return prompt(server), answer.json()["context_management"]["applied_edits"]


def kept(text: str, word: str) -> list[int]:
    """The turns whose word is in a prompt."""
    return [number for number in range(4) if f"{word}{number}" in text]


def clear_tools(**fields: Any) -> dict[str, Any]:
    """An edit that clears results of tools, whatever the length of the prompt."""
    trigger = {"type": "input_tokens", "value": 1}
    return {"type": "clear_tool_uses_20250919", "trigger": trigger, **fields}


@pytest.mark.parametrize(
    ("keep", "numbers"),
    [
        ({}, [3]),
        ({"keep": {"type": "thinking_turns", "value": 2}}, [2, 3]),
        ({"keep": {"type": "thinking_turns", "value": 4}}, [0, 1, 2, 3]),
        ({"keep": "all"}, [0, 1, 2, 3]),
        ({"keep": {"type": "all"}}, [0, 1, 2, 3]),
    ],
)
def test_thinking_of_older_turns_is_cleared(
    server: Running, keep: dict[str, Any], numbers: list[int]
) -> None:
    text, applied = edited(server, {"type": "clear_thinking_20251015", **keep})
    assert kept(text, "thought") == numbers
    assert kept(text, "out") == kept(text, "said") == [0, 1, 2, 3]
    if len(numbers) == 4:
        assert applied == []
    else:
        [done] = applied
        assert done["type"] == "clear_thinking_20251015"
        assert done["cleared_thinking_turns"] == 4 - len(numbers)
        assert done["cleared_input_tokens"] > 0


def test_results_do_not_begin_a_turn(server: Running) -> None:
    """The thinking between the calls of one turn stays together."""
    loop = [*TALK[:3], *turn(1)[1:3], {"role": "user", "content": "and?"}]
    edit = {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}}
    text, applied = edited(server, edit, messages=loop)
    assert kept(text, "thought") == [0, 1] and applied == []
    alone = [*TALK[:1], {"role": "assistant", "content": TALK[1]["content"][:1]}, *TALK[4:]]
    text, _ = edited(server, edit, messages=alone)
    assert "ask0\nask1" in text and kept(text, "thought") == [3]


@pytest.mark.parametrize(
    ("fields", "results", "inputs"),
    [
        ({}, [1, 2, 3], [0, 1, 2, 3]),
        ({"keep": {"type": "tool_uses", "value": 1}}, [3], [0, 1, 2, 3]),
        ({"keep": {"type": "tool_uses", "value": 0}}, [], [0, 1, 2, 3]),
        ({"keep": {"type": "tool_uses", "value": 9}}, [0, 1, 2, 3], [0, 1, 2, 3]),
        (
            {"keep": {"type": "tool_uses", "value": 1}, "exclude_tools": ["write"]},
            [1, 3],
            [0, 1, 2, 3],
        ),
        ({"keep": {"type": "tool_uses", "value": 1}, "clear_tool_inputs": True}, [3], [3]),
        (
            {"keep": {"type": "tool_uses", "value": 1}, "clear_tool_inputs": ["write"]},
            [3],
            [0, 2, 3],
        ),
        ({"trigger": {"type": "input_tokens", "value": 100_000}}, [0, 1, 2, 3], [0, 1, 2, 3]),
        ({"trigger": {"type": "tool_uses", "value": 4}}, [0, 1, 2, 3], [0, 1, 2, 3]),
        ({"trigger": {"type": "tool_uses", "value": 3}}, [1, 2, 3], [0, 1, 2, 3]),
        (
            {"clear_at_least": {"type": "input_tokens", "value": 1000}},
            [0, 1, 2, 3],
            [0, 1, 2, 3],
        ),
    ],
)
def test_results_of_older_calls_are_cleared(
    server: Running, fields: dict[str, Any], results: list[int], inputs: list[int]
) -> None:
    # The placeholder is longer than the results, so the cleared tokens may be negative.
    text, applied = edited(server, clear_tools(**fields))
    assert kept(text, "out") == results and kept(text, "in") == inputs
    assert text.count(CACHED) == 4 - len(results)
    assert [done["cleared_tool_uses"] for done in applied] == [4 - len(results)] * bool(applied)
    assert bool(applied) == (len(results) < 4)


def test_the_client_reads_what_was_cleared(server: Running, client: anthropic.Anthropic) -> None:
    body: Any = {
        "model": "echo",
        "messages": TALK,
        "tools": TOOLS,
        "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
    }
    counted = client.beta.messages.count_tokens(**body)
    whole = client.beta.messages.create(max_tokens=1, **body)
    assert counted.context_management is not None and whole.context_management is not None
    [done] = whole.context_management.applied_edits
    assert done.type == "clear_thinking_20251015" and done.cleared_thinking_turns == 3
    before = counted.context_management.original_input_tokens
    assert before - counted.input_tokens == done.cleared_input_tokens > 0
    used = whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
    assert used == counted.input_tokens
    with client.beta.messages.stream(max_tokens=1, **body) as stream:
        assert stream.get_final_message().context_management == whole.context_management
    body["context_management"] = {"edits": []}
    assert client.beta.messages.count_tokens(**body).input_tokens == before
    plain = client.beta.messages.create(**{**body, "max_tokens": 1, "context_management": None})
    assert plain.context_management is None


@pytest.mark.parametrize(
    ("edit", "word"),
    [
        ({"type": "clear_thinking_20251015", "keep": "some"}, "edits[0]: keep"),
        ({"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns"}}, "value"),
        (clear_tools(keep={"type": "tool_uses", "value": -1}), "edits[0]: keep.value"),
        (clear_tools(trigger={"type": "hours", "value": 1}), "edits[0]: trigger"),
        (7, "edits[0]"),
    ],
)
def test_malformed_edits_are_refused_by_name(server: Running, edit: Any, word: str) -> None:
    for path in (MESSAGES, COUNT):
        answer = ask(server, path, context_management={"edits": [edit]})
        assert answer.status_code == 400 and word in answer.json()["error"]["message"], answer.text


def test_fields_of_edits_that_are_newer_than_the_server(server: Running) -> None:
    keep = {"type": "thinking_turns", "value": 1, "new": 1}
    edit = {"type": "clear_thinking_20251015", "keep": keep, "newer": 1}
    answer = ask(server, messages=TALK, tools=TOOLS, context_management={"edits": [edit]})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-ostro-ignored"] == "newer, keep.new"
    assert kept(prompt(server), "thought") == [3]


def test_compaction_is_named_in_a_header(server: Running, start: Start) -> None:
    fields = {"context_management": {"edits": [{"type": "compact_20260112"}]}}
    answer = ask(server, **fields)
    assert answer.status_code == 200
    assert answer.headers["x-ostro-ignored"] == "context_management compact_20260112"
    refused = ask(start(), **fields)
    assert refused.status_code == 400
    assert "context_management.edits[0].type: 'compact_20260112'" in refused.text


def test_a_deferred_tool_waits_for_its_reference(server: Running) -> None:
    tools = [{**TOOLS[0], "input_examples": [{"path": "a"}]}, {**TOOLS[1], "defer_loading": True}]
    call = {"type": "tool_use", "id": "c", "name": "read", "input": {}}
    found = {"type": "tool_reference", "tool_name": "write"}
    history = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [call]}]
    for content, listed in (("nothing", False), ([found], True)):
        result = {"type": "tool_result", "tool_use_id": "c", "content": content}
        messages = [*history, {"role": "user", "content": [result]}]
        answer = ask(server, tools=tools, messages=messages)
        assert answer.status_code == 200, answer.text
        head = prompt(server).partition("user\nhi")[0]
        assert '"name": "read"' in head and ('"name": "write"' in head) == listed
        assert ("The tool write can be called now." in prompt(server)) == listed
    assert ask(server, tools=[tools[1]]).status_code == 200
    assert '"name": "write"' not in prompt(server)


def test_search_results_are_read(server: Running) -> None:
    block = {
        "type": "search_result",
        "source": "file.py",
        "title": "A file",
        "content": [{"type": "text", "text": "line 1"}, {"type": "text", "text": "line 2"}],
        "citations": {"enabled": False},
    }
    assert ask(server, messages=[{"role": "user", "content": [block]}]).status_code == 200
    assert "A file\nfile.py\nline 1\nline 2" in prompt(server)
    block["citations"] = {"enabled": True}
    answer = ask(server, messages=[{"role": "user", "content": [block]}])
    assert answer.status_code == 400 and "citations" in answer.text


def test_tools_of_the_vendors_servers_are_skipped_by_name(server: Running) -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    answer = ask(server, tools=[search, TOOLS[0]])
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-ostro-ignored"] == "tools of the type web_search_20250305"
    assert '"name": "read"' in prompt(server) and "web_search" not in prompt(server)
    with_field = ask(server, tools=[{**search, "max_uses": 1}], temperature=7)
    assert with_field.status_code == 400 and "temperature" in with_field.text
    forced = ask(
        server, tools=[search, TOOLS[0]], tool_choice={"type": "tool", "name": "web_search"}
    )
    assert forced.status_code == 400 and "web_search" in forced.text
    shell = ask(server, tools=[{"type": "bash_20990101", "name": "bash"}])
    assert shell.status_code == 400 and "'bash_20990101'" in shell.text


def test_no_tokens_fill_the_prefix_cache(server: Running) -> None:
    answer = ask(server, max_tokens=0).json()
    assert answer["content"] == [] and answer["stop_reason"] == "max_tokens"
    assert answer["usage"]["output_tokens"] == 0


def test_a_request_of_a_coding_agent(server: Running) -> None:
    cached = {"cache_control": {"type": "ephemeral", "ttl": "1h", "scope": "global"}}
    answer = ask(
        server,
        path=f"{MESSAGES}?beta=true",
        max_tokens=32000,
        system=[{"type": "text", "text": "You write code.", **cached}],
        messages=[
            {
                "role": "user",
                "content": [
                    {
                        "type": "text",
                        "text": "hello",
                        "cache_control": {"type": "ephemeral", "new": 1},
                    }
                ],
            }
        ],
        tools=TOOLS,
        thinking={"type": "adaptive"},
        output_config={"effort": "high"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        diagnostics={"previous_message_id": None},
        metadata={"user_id": "u"},
        speed_hint={"a": 1},
    )
    assert answer.status_code == 200, answer.text
    names = answer.headers["x-ostro-ignored"].split(", ")
    assert names == ["speed_hint", "messages[].content[].cache_control.new"]
    assert answer.json()["context_management"] == {"applied_edits": []}
