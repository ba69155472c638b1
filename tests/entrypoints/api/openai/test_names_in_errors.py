"""Errors name the fields of the API that the request uses."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from echo.server import Running

LONG = "hello " * 5000
CALL: dict[str, Any] = {"type": "function_call_output", "call_id": "a", "output": "b"}
BUDGET: dict[str, Any] = {"type": "enabled", "budget_tokens": 1024}
USER: dict[str, Any] = {"role": "user", "content": "hi"}


def error(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 400, answer.text
    found = answer.json()["error"]
    return found if isinstance(found, dict) else {"message": found}


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"max_output_tokens": 2**31 + 1}, "max_output_tokens", "max_output_tokens=2147483649 is"),
        ({"input": [CALL]}, "input", "input: no earlier message calls 'a'"),
        ({"input": LONG}, "input", "This model's maximum context length is 4096 tokens. However, "),
        ({"input": LONG, "stream": True}, "input", "This model's maximum context length is 4096"),
        ({"input": ""}, "input", "input: got 0, expected"),
    ],
)
def test_responses(server: Running, body: dict[str, Any], param: str, message: str) -> None:
    found = error(server.post("/v1/responses", **{"input": "hi", **body}))
    assert found["param"] == param and found["message"].startswith(message)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/chat/completions/input_tokens"])
def test_the_context_of_a_chat(server: Running, path: str) -> None:
    found = error(server.post(path, messages=LONG * 8))
    assert found["param"] == "messages" and found["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("field", "value"),
    [("dry_base", 0.5), ("dry_allowed_length", 0), ("dry_penalty_last_n", 2**70)],
)
def test_penalties_of_repetition(server: Running, field: str, value: float) -> None:
    found = error(server.complete(dry_multiplier=1, **{field: value}))
    assert found["param"] == field and found["message"].startswith(f"{field}={value} is not within")


def test_the_context_of_a_completion(server: Running) -> None:
    assert error(server.complete(LONG))["param"] == "prompt"


OPENAI = (
    r"^This model's maximum context length is 4096 tokens\. However, your prompt resulted in .*; "
)
ANTHROPIC = r"^prompt is too long: .*\d+ tokens > 4096 maximum; "
OLLAMA = (
    r"^prompt too long; exceeded max context length by \d+ tokens\. This model's maximum context"
)


@pytest.mark.parametrize("text", ["a" * 4096, "a" * 4097, LONG * 3], ids=["full", "longer", "far"])
@pytest.mark.parametrize(
    ("path", "field", "words"),
    [
        ("/v1/completions", "prompt", OPENAI),
        ("/v1/chat/completions", "messages", OPENAI),
        ("/v1/responses", "input", OPENAI),
        ("/v1/messages", "messages", ANTHROPIC),
        ("/v1/messages/count_tokens", "messages", ANTHROPIC),
        ("/api/chat", "messages", OLLAMA),
        ("/api/generate", "prompt", OLLAMA),
    ],
)
def test_clients_recognize_a_prompt_beyond_the_context(
    server: Running, path: str, field: str, words: str, text: str
) -> None:
    """They compact the conversation where a message has the words of the route's vendor."""
    body: dict[str, Any] = {"model": "echo", field: text}
    if field == "messages":
        body = {"model": "echo", "messages": [{"role": "user", "content": text}]}
    if path == "/v1/messages":
        body["max_tokens"] = 8
    if path == "/v1/messages/count_tokens":  # it may exceed the context
        body["messages"][0]["content"] = text * 8
    message = error(server.post(path, **body))["message"]
    assert re.search(words, message) and message.endswith("or load with a larger --context")


def test_messages_of_anthropic(server: Running) -> None:
    body: dict[str, Any] = {"model": "default", "max_tokens": 2000}
    found = error(server.post("/v1/messages", **body, messages=[USER], thinking=BUDGET))
    assert found["message"].startswith("thinking.budget_tokens: reasoning is not parsed")
    long = [{"role": "user", "content": LONG * 8}]
    found = error(server.post("/v1/messages", **body, messages=long))
    assert found["message"].startswith("prompt is too long: at least 4097 tokens > 4096 maximum; ")


@pytest.mark.parametrize(
    ("option", "value"),
    [("temperature", 1000), ("num_predict", 2**40), ("repeat_penalty", 1000), ("seed", 2**70)],
)
def test_options_of_ollama(server: Running, option: str, value: int) -> None:
    for path, text in (("/api/chat", {"messages": [USER]}), ("/api/generate", {"prompt": "hi"})):
        found = error(server.post(path, model="default", options={option: value}, **text))
        assert found["message"].startswith(f"options.{option}={value}")
