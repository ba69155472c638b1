"""Turns that clients send back or in between, on all routes: late systems, cut calls, thoughts."""

from __future__ import annotations

from typing import Any

import pytest
from echo.server import Running, Start, make_state

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('the system message must be first') }}{% endif %}"
    "({{ m.role }}: {{ m.reasoning_content or '' }}|{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }}"
    "{% for k, v in c.function.arguments | items %} {{ k }}={{ v }}{% endfor %}]"
    "{% endfor %}){% endfor %}"
)
"""The echo engine answers with the prompt."""

PROMPT = (
    "(system: |Be kind.\n\nBe brief.)(user: |a)(assistant: hm|)"
    "(user: |<system_message>\nNow.\n</system_message>\n\nb)"
    '(assistant: |[f INVALID_JSON={"x": 1])(tool: |bad)'
)
ROLES = ("system", "developer")


def message(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def chat(role: str) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1'}}
    return {
        "messages": [
            message("system", "Be kind."),
            message(role, "Be brief."),
            message("user", "a"),
            {**message("assistant", None), "reasoning_content": "hm"},
            message(role, "Now."),
            message("user", "b"),
            {**message("assistant", None), "tool_calls": [call]},
            {**message("tool", "bad"), "tool_call_id": "1"},
        ]
    }


def response(role: str) -> dict[str, Any]:
    thought = {"type": "reasoning_text", "text": "hm"}
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"x": 1'}
    return {
        "instructions": "Be kind.",
        "input": [
            message(role, "Be brief."),
            message("user", "a"),
            {"type": "reasoning", "summary": [], "content": [thought]},
            message(role, "Now."),
            message("user", "b"),
            call,
            {"type": "function_call_output", "call_id": "1", "output": "bad"},
        ],
    }


def messages(role: str) -> dict[str, Any]:
    call = {"type": "tool_use", "id": "1", "name": "f", "input": {"INVALID_JSON": '{"x": 1'}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": "bad"}
    return {
        "max_tokens": 400,
        "system": "Be kind.",
        "messages": [
            message("system", "Be brief."),
            message("user", "a"),
            message("assistant", [{"type": "thinking", "thinking": "hm", "signature": "s"}]),
            message("system", "Now."),
            message("user", "b"),
            message("assistant", [call]),
            message("user", [result]),
        ],
    }


def ollama(role: str) -> dict[str, Any]:
    call = {"function": {"name": "f", "arguments": {"INVALID_JSON": '{"x": 1'}}}
    return {
        "stream": False,
        "messages": [
            message("system", "Be kind."),
            message(role, "Be brief."),
            message("user", "a"),
            {**message("assistant", ""), "thinking": "hm"},
            message(role, "Now."),
            message("user", "b"),
            {**message("assistant", ""), "tool_calls": [call]},
            message("tool", "bad"),
        ],
    }


def text_of(answer: Any) -> str:
    """The text of an answer of any route."""
    if "choices" in answer:
        return str(answer["choices"][0]["message"]["content"])
    if "output" in answer:
        return str(answer["output"][-1]["content"][0]["text"])
    content = answer["message"]["content"] if "message" in answer else answer["content"][0]["text"]
    return str(content)


@pytest.fixture(scope="module")
def server(start: Start) -> Running:
    return start(template=TEMPLATE)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat),
        ("/v1/responses", response),
        ("/v1/messages", messages),
        ("/api/chat", ollama),
    ],
)
def test_one_history_is_one_prompt(server: Running, path: str, body: Any, role: str) -> None:
    found = server.post(path, model="echo", **body(role))
    assert found.status_code == 200, found.text
    assert text_of(found.json()) == PROMPT


LAST = (
    "{% if false %}<think></think>{% endif %}"
    "{% for m in messages[:-1] %}{{ m.reasoning_content or '' }};{% endfor %}"
    "{{ messages[-1].content }}"
)
CUT = "<think>\nhm, hm"
"""The answer of a model that max_tokens cuts in its reasoning."""


@pytest.fixture(scope="module")
def thinker(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Running:
    return start(template=LAST, state=make_state(str(tmp_path_factory.mktemp("store") / "state")))


@pytest.mark.parametrize("nulls", [True, False])
def test_a_chat_goes_on_behind_reasoning_alone(thinker: Running, nulls: bool) -> None:
    found = thinker.chat(CUT, max_tokens=len(CUT)).json()["choices"][0]["message"]
    assert found["reasoning_content"] == "hm, hm" and not found["content"]
    if not nulls:
        found = {name: value for name, value in found.items() if value}
    history = [message("user", "a"), found, message("user", "b")]
    assert text_of(thinker.chat(messages=history).json()) == ";hm, hm;b"


@pytest.mark.parametrize("kind", ["previous_response_id", "conversation"])
def test_a_response_goes_on_behind_reasoning_alone(thinker: Running, kind: str) -> None:
    given: dict[str, Any] = {"model": "echo"}
    if kind == "conversation":
        given["conversation"] = thinker.post("/v1/conversations").json()["id"]
    first = thinker.post("/v1/responses", input=CUT, max_output_tokens=len(CUT), **given).json()
    assert [item["type"] for item in first["output"]] == ["reasoning"]
    if kind == "previous_response_id":
        given[kind] = first["id"]
    second = thinker.post("/v1/responses", input="b", **given)
    assert second.status_code == 200, second.text
    assert text_of(second.json()) == ";hm, hm;b"
