"""A reasoning effort for a model whose chat template reads none: coding agents always send one."""

from __future__ import annotations

from typing import Any

import pytest
from echo.server import Running, Start

HEADER, NAME = "x-ostro-ignored", "reasoning_effort"
HI = [{"role": "user", "content": "hi"}]
PLAIN = "{{ messages[-1].content }}"
CASES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": HI, "reasoning_effort": "high"}),
    ("/v1/chat/completions", {"messages": HI, "reasoning": {"effort": "low"}}),
    ("/v1/chat/completions", {"messages": HI, "think": "medium"}),
    ("/v1/responses", {"input": "hi", "reasoning": {"effort": "high"}, "store": False}),
    ("/v1/responses/input_tokens", {"input": "hi", "reasoning": {"effort": "high"}}),
    ("/apply-template", {"messages": HI, "reasoning_effort": "high"}),
]


@pytest.fixture(scope="module")
def server(start: Start) -> Running:
    """A server as `ostro serve` starts it."""
    return start(template=PLAIN, strict_fields=False)


@pytest.mark.parametrize(("path", "fields"), CASES)
def test_it_is_ignored_by_name(server: Running, path: str, fields: dict[str, Any]) -> None:
    answer = server.post(path, model="echo", **fields)
    assert answer.status_code == 200, answer.text
    assert answer.headers[HEADER] == NAME
    without = {key: value for key, value in fields.items() if key in ("messages", "input")}
    seen = [request.tokens for request in server.echo.seen[-1:]]
    plain = server.post(path, model="echo", **without)
    assert HEADER not in plain.headers
    assert [request.tokens for request in server.echo.seen[-1:]] == seen


@pytest.mark.parametrize(("path", "fields"), CASES)
def test_strict_servers_refuse_it(start: Start, path: str, fields: dict[str, Any]) -> None:
    answer = start(template=PLAIN).post(path, model="echo", **fields)
    assert answer.status_code == 400, answer.text
    assert "reads neither an effort" in answer.json()["error"]["message"]


@pytest.mark.parametrize("template", ["{{ reasoning_effort }}", "{{ enable_thinking }}"])
def test_a_template_that_reads_it_gets_it(start: Start, template: str) -> None:
    answer = start(template=template, strict_fields=False).post(
        "/apply-template", model="echo", messages=HI, reasoning_effort="high"
    )
    assert HEADER not in answer.headers
    assert answer.json()["prompt"] in ("high", "True")


def test_no_reasoning_is_not_ignored(server: Running) -> None:
    """It is a budget of 0, which needs no template."""
    answer = server.post("/v1/chat/completions", messages=HI, reasoning_effort="none")
    assert answer.status_code == 200 and HEADER not in answer.headers
