"""Chats that are longer than `num_ctx`: Ollama's clients expect that the oldest messages go."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from echo.server import Running, Start

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}\n"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>\n"
    "{% endfor %}{% endfor %}{{ tools and '' }}"
)
CALL = {"function": {"name": "look", "arguments": {}}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "1" * 100},
    {"role": "assistant", "content": "2" * 100},
    {"role": "system", "content": "rule"},
    {"role": "user", "content": "3" * 100},
    {"role": "assistant", "content": "4" * 100, "tool_calls": [CALL, CALL]},
    {"role": "tool", "content": "5" * 100},
    {"role": "tool", "content": "6" * 100},
    {"role": "user", "content": "7" * 100},
]


@pytest.fixture(scope="module")
def server(start: Start) -> Running:
    """A server as `ostro serve` starts it, with a context of 4096 tokens."""
    return start(template=TEMPLATE, strict_fields=False)


def ask(server: Running, **fields: Any) -> httpx.Response:
    return server.post("/api/chat", **{"model": "echo", "messages": MESSAGES, **fields})


def shown(server: Running) -> str:
    """The first digits of the messages in the last prompt, and s for that of the system."""
    prompt = bytes(token for token in server.echo.seen[-1].tokens if token < 256).decode()
    lines = [line.partition(":")[2] for line in prompt.splitlines() if ":" in line[:10]]
    return "".join("s" if line == "rule" else line[:1] for line in lines)


@pytest.mark.parametrize(
    ("num_ctx", "predict", "expected"),
    [
        (4096, 9, "12s34567"),
        (800, 9, "2s34567"),
        (620, 9, "s4567"),
        (620, 200, "s7"),  # results go with their call
        (400, 9, "s7"),
        (150, 9, "s7"),
    ],
)
def test_the_oldest_messages_go(server: Running, num_ctx: int, predict: int, expected: str) -> None:
    answer = ask(server, options={"num_ctx": num_ctx, "num_predict": predict}, stream=False)
    assert answer.status_code == 200, answer.text
    assert shown(server) == expected
    names = answer.headers.get("x-ostro-ignored", "")
    assert names == ("" if expected == "12s34567" else "messages beyond the context")
    request = server.echo.seen[-1]
    assert len(request.tokens) + min(predict, num_ctx // 4) <= num_ctx
    assert request.sampling.max_tokens == predict


def test_a_chat_may_exceed_the_context_of_the_model(server: Running) -> None:
    """Then it is this one that the error of the whole chat states."""
    long = [{"role": ("user", "assistant")[i % 2], "content": "8" * 200} for i in range(60)]
    for num_ctx, count in ((400, 1), (None, 14)):
        answer = ask(
            server,
            messages=[*long, MESSAGES[-1]],
            options={"num_ctx": num_ctx, "num_predict": 9},
            stream=False,
        )
        assert answer.status_code == 200, answer.text
        digits = shown(server)
        assert digits[-1] == "7" and {*digits[:-1]} == {"8"}
        tokens = len(server.echo.seen[-1].tokens)
        assert (num_ctx or 4096) - 250 < tokens <= (num_ctx or 4096) - 9
        assert len(digits) > count


def test_streams_have_the_same_prompt(server: Running) -> None:
    with server.http.stream(
        "POST",
        "/api/chat",
        json={"model": "echo", "messages": MESSAGES, "options": {"num_ctx": 400}},
    ) as answer:
        assert answer.status_code == 200 and '"done":true' in answer.read().decode()
    assert shown(server) == "s7"


@pytest.mark.parametrize(
    "fields",
    [
        {"truncate": False},
        {"messages": MESSAGES[-1:], "options": {"num_ctx": 100}},
        {"messages": [{"role": "system", "content": "r" * 400}, MESSAGES[0]]},
    ],
)
def test_other_chats_stay_too_long(server: Running, fields: dict[str, Any]) -> None:
    answer = ask(server, **{"options": {"num_ctx": 400}, **fields})
    assert answer.status_code == 400 and "prompt too long" in answer.json()["error"]


def test_strict_servers_refuse_long_chats(start: Start) -> None:
    answer = ask(start(template=TEMPLATE), options={"num_ctx": 400})
    assert answer.status_code == 400 and "prompt too long" in answer.json()["error"]
