"""Large bodies are converted in a thread, by every API family: other requests go on meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from echo.server import Running, Start, make_state

from ostro.entrypoints.api.openai import bodies
from ostro.entrypoints.api.openai.responses import conversation_routes
from ostro.entrypoints.api.openai.responses import request as responses
from ostro.plugins.apis.anthropic import conversation as anthropic
from ostro.plugins.apis.ollama import conversion as ollama

PARTS = [{"type": "text", "text": "a"}] * 3000
"""More than the JSON that the event loop converts."""
MESSAGES = [{"role": "user", "content": PARTS}]
LONG = "a" * 100_000
INPUT = [{"role": "user", "content": [{"type": "input_text", "text": "a"}] * 3000}]
FAMILIES: list[tuple[str, dict[str, Any], ModuleType, str]] = [
    ("/v1/chat/completions", {"messages": MESSAGES}, bodies, "read_messages"),
    ("/v1/chat/completions/input_tokens", {"messages": MESSAGES}, bodies, "read_messages"),
    ("/v1/completions", {"prompt": ["a"] * 30_000}, bodies, "read_prompts"),
    ("/v1/responses", {"input": INPUT}, responses, "chat_messages"),
    ("/v1/responses", {"input": INPUT}, responses, "read_items"),
    ("/v1/responses/input_tokens", {"input": INPUT}, responses, "read_items"),
    ("/v1/conversations", {"items": INPUT}, conversation_routes, "read_items"),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 9}, anthropic, "chat_messages"),
    ("/v1/messages/count_tokens", {"messages": MESSAGES}, anthropic, "chat_messages"),
    ("/api/chat", {"messages": [{"role": "user", "content": LONG}]}, ollama, "chat_messages"),
    ("/api/generate", {"prompt": LONG, "raw": True}, ollama, "set_shared_fields"),
    ("/tokenize", {"messages": MESSAGES}, bodies, "read_messages"),
    ("/apply-template", {"messages": MESSAGES}, bodies, "read_messages"),
]


@pytest.fixture(scope="module")
def server(start: Start) -> Running:
    return start(state=make_state("memory"))


@pytest.mark.parametrize(("path", "body", "module", "name"), FAMILIES, ids=lambda x: str(x)[:25])
def test_large_bodies_are_converted_in_a_thread(
    server: Running,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    body: dict[str, Any],
    module: ModuleType,
    name: str,
) -> None:
    convert: Callable[..., Any] = getattr(module, name)
    threads: list[str] = []

    def recorded(*args: Any) -> Any:
        threads.append(threading.current_thread().name)
        return convert(*args)

    monkeypatch.setattr(module, name, recorded)
    target = {} if path == "/v1/conversations" else {"model": "echo"}
    server.post(path, **target, **body)
    assert [thread.rstrip("0123456789_-") for thread in threads] == ["json"]
