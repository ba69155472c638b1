"""Structured output of a real engine: answers at temperature 1 satisfy their grammars."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import anthropic
import httpx
import ollama
import openai
import pydantic
import pytest
from tiny.model import make_model
from tiny.server import RunningServer, serving

from ostro.core.settings import Settings

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hello world"}]}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
Holds = Callable[[str], Any]

pytestmark = pytest.mark.slow


def is_person(text: str) -> bool:
    value = json.loads(text)
    return (
        value.keys() <= {"name", "age", "tags"}
        and len(value["name"]) <= 6
        and 0 <= value["age"] <= 150
        and set(value.get("tags", ())) <= {"a", "b"}
    )


KINDS: list[tuple[dict[str, Any], Holds]] = [
    ({"response_format": FORMAT}, is_person),
    ({"guided_regex": "[a-f]{2,9}-[0-9]"}, re.compile("[a-f]{2,9}-[0-9]").fullmatch),
    ({"guided_choice": ["yes", "no"], "n": 3}, ("yes", "no").__contains__),
    ({"grammar": 'root ::= "(" root ")" | "x"'}, re.compile(r"\(*x\)*").fullmatch),
    ({}, lambda text: True),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = make_model(tmp_path_factory.mktemp("models") / "tiny")
    with serving(Settings(reference=str(folder), dtype="float32", threads=1)) as running:
        yield running


def test_answers_in_mixed_batches_satisfy_their_grammars(server: RunningServer) -> None:
    def ask(i: int) -> list[tuple[int, str, str]]:
        kind = i % len(KINDS)
        body = {"max_tokens": 120, "temperature": 1, "seed": i, **KINDS[kind][0]}
        answer = server.post(CHAT, **HELLO, **body)
        assert answer.status_code == 200, answer.text
        found = answer.json()["choices"]
        return [(kind, each["message"]["content"], each["finish_reason"]) for each in found]

    with ThreadPoolExecutor(8) as threads:
        answers = [each for found in threads.map(ask, range(20)) for each in found]
    ended = [(kind, text) for kind, text, finish in answers if finish == "stop"]
    assert {kind for kind, _ in ended} >= {0, 1, 2, 3}, "each grammar ends some answers"
    assert [(kind, text) for kind, text in ended if not KINDS[kind][1](text)] == []


def test_a_stream_is_the_answer(server: RunningServer) -> None:
    body = {**HELLO, "response_format": FORMAT, "seed": 3, "max_tokens": 120, "stream": True}
    text, finish = "", None
    with httpx.stream("POST", server.url + CHAT, json=body, timeout=120) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                choice = json.loads(line[6:])["choices"][0]
                text += choice["delta"].get("content") or ""
                finish = choice["finish_reason"] or finish
    assert finish == "length" or is_person(text)


def test_a_schema_longer_than_the_answer_is_cut(server: RunningServer) -> None:
    format = {"type": "json_schema", "json_schema": {"schema": {"const": "x" * 200}}}
    answer = server.post(CHAT, **HELLO, response_format=format, max_tokens=5).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["message"]["content"].startswith('"x')


def test_an_invalid_schema_is_a_400_of_its_field(server: RunningServer) -> None:
    """The engine finds it, while other requests go on."""
    wrong = {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}
    bodies: list[tuple[str, dict[str, Any], str]] = [
        (CHAT, {**HELLO, "response_format": wrong}, "response_format"),
        ("/v1/completions", {"prompt": "a", "guided_json": {"type": 7}}, "guided_json"),
        ("/v1/completions", {"prompt": "a", "guided_regex": "(?=a)b"}, "guided_regex"),
    ]
    for path, body, field in bodies:
        answer = server.post(path, **body)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == field, answer.text
        good = server.post(CHAT, **HELLO, guided_choice=["ok"]).json()
        assert good["choices"][0]["message"]["content"] == "ok"


class Pair(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    left: Literal["a", "b"]
    right: bool


def test_clients_parse_answers_into_their_types(server: RunningServer) -> None:
    """OpenAI's SDK sends the schema of a type and reads the answer; Ollama's takes a schema."""
    message: Any = {"role": "user", "content": "hello"}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        chat = client.chat.completions.parse(
            model="tiny", messages=[message], response_format=Pair, max_tokens=150, seed=1
        )
        answer = client.responses.parse(
            model="tiny",
            input="hello",
            text_format=Pair,
            max_output_tokens=150,
            extra_body={"seed": 1},
        )
    assert isinstance(chat.choices[0].message.parsed, Pair)
    assert isinstance(answer.output_parsed, Pair)
    with ollama.Client(host=server.url) as llama:
        found = llama.chat(
            model="tiny", messages=[message], format=Pair.model_json_schema(), options={"seed": 1}
        )
    assert Pair.model_validate_json(found.message.content or "")
    schema = {"type": "json_schema", "schema": Pair.model_json_schema()}
    with anthropic.Anthropic(base_url=server.url, api_key="none") as claude:
        said = claude.messages.create(
            model="tiny",
            max_tokens=150,
            messages=[message],
            extra_body={"output_config": {"format": schema}, "seed": 1},
        )
    assert Pair.model_validate_json(said.content[0].text)  # type: ignore[union-attr]
