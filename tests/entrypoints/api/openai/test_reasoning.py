"""Budgets of reasoning, and grammars behind it, with a real engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from tiny.model import make_model
from tiny.server import RunningServer, serving

import ostro
from ostro.core.messages.text import Reasoning, text_of
from ostro.core.settings import Settings

CHAT = "/v1/chat/completions"
OPENING = "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n"
"""A template that always begins the reasoning. The weights are random: it would rarely end."""
HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hello world"}]
PAIR = {
    "type": "object",
    "properties": {"left": {"enum": ["a", "b"]}, "right": {"type": "boolean"}},
    "required": ["left", "right"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "pair", "schema": PAIR}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_model(tmp_path_factory.mktemp("models") / "tiny", template=OPENING))


@pytest.fixture(scope="module")
def server(folder: str) -> Iterator[RunningServer]:
    with serving(Settings(reference=folder, dtype="float32", threads=1)) as running:
        yield running


def ask(server: RunningServer, **fields: Any) -> dict[str, Any]:
    body = {"messages": HELLO, "max_tokens": 200, "temperature": 1, "seed": 4, **fields}
    answer = server.post(CHAT, **body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def reasoning_tokens(answer: dict[str, Any]) -> int:
    """The tokens of reasoning, with those of the marker that ends it."""
    found: int = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    return found


@pytest.mark.parametrize(
    "name", ["thinking_budget", "thinking_token_budget", "thinking_budget_tokens"]
)
def test_a_budget_ends_the_reasoning(server: RunningServer, name: str) -> None:
    fields = {"ignore_eos": True}
    endless = ask(server, **fields)["choices"][0]
    assert endless["finish_reason"] == "length" and not endless["message"]["content"]
    message = ask(server, **fields, **{name: 12})["choices"][0]["message"]
    assert message["content"]
    reasoning = endless["message"]["reasoning_content"]
    assert reasoning.startswith(message["reasoning_content"]), "the same tokens up to the budget"
    shorter, longer = (reasoning_tokens(ask(server, **fields, **{name: most})) for most in (12, 20))
    assert 5 <= longer - shorter <= 11, "a character is not cut"


def test_the_effort_none_ends_it_at_once(server: RunningServer) -> None:
    answer = ask(server, reasoning_effort="none")
    message = answer["choices"][0]["message"]
    assert message["content"] and not message.get("reasoning_content")


@pytest.mark.parametrize("seed", range(3))
def test_an_answer_has_its_form_behind_the_reasoning(server: RunningServer, seed: int) -> None:
    answer = ask(server, thinking_budget=9, response_format=FORMAT, seed=seed, n=2)
    for choice in answer["choices"]:
        assert choice["message"]["reasoning_content"]
        found = json.loads(choice["message"]["content"])
        assert found["left"] in ("a", "b") and isinstance(found["right"], bool)
        assert choice["finish_reason"] == "stop"


def test_drawing_each_forced_token_gives_the_same(server: RunningServer) -> None:
    for fields in ({"response_format": FORMAT}, {}):
        rules: dict[str, Any] = {"thinking_budget": 9, "seed": 7, **fields}
        answers = [ask(server, speculate=each, **rules)["choices"] for each in (True, False)]
        assert answers[0] == answers[1]


def test_a_stream_gives_the_same(server: RunningServer) -> None:
    fields: dict[str, Any] = {"thinking_budget": 9, "response_format": FORMAT}
    message = ask(server, **fields)["choices"][0]["message"]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        stream = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "hello world"}],
            stream=True,
            max_tokens=200,
            temperature=1,
            seed=4,
            extra_body=fields,
        )
        deltas = [chunk.choices[0].delta.to_dict() for chunk in stream]
    for name in ("content", "reasoning_content"):
        assert "".join(str(delta.get(name) or "") for delta in deltas) == message[name]


def test_budgets_in_python(folder: str) -> None:
    with ostro.load(folder, dtype="float32", threads=1) as model:
        rules = {"max_tokens": 150, "temperature": 1, "seed": 2}
        answer = model.chat(HELLO, thinking_budget=9, schema=PAIR, **rules)
        assert answer.reasoning and json.loads(answer.text)["left"] in ("a", "b")
        events = list(model.stream(HELLO, thinking_budget=9, schema=PAIR, **rules))
        assert text_of(events) == answer.text
        assert model.generate(HELLO, thinking_budget=9, schema=PAIR, **rules) == answer.text
        thoughts = [event.text for event in events if isinstance(event, Reasoning)]
        assert len(thoughts) > 1 and "".join(thoughts) == answer.reasoning
        assert model.chat(HELLO, **rules).text == ""
