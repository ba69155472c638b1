"""The fields of all APIs that constrain the output, as the engine receives them."""

from __future__ import annotations

from typing import Any

import pytest
from echo.model import TEMPLATE

SCHEMA = {"type": "object", "properties": {"a": {"enum": [None, 1]}}}
TEXT = '{"type": "object", "properties": {"a": {"enum": [null, 1]}}}'
NAMED = {"name": "x", "schema": SCHEMA, "strict": True}
TAG = {"begin": "<a>", "schema": SCHEMA, "end": "</a>"}
TAGS = {"structures": [TAG], "triggers": ["<a"]}
GBNF = 'root ::= "a"'
LARK = 'start: "a"'

FORMS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"response_format": {"type": "json_object"}}, {"json_schema": {"type": "object"}}),
    ({"response_format": {"type": "json_schema", "json_schema": NAMED}}, {"json_schema": SCHEMA}),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, {"json_schema": SCHEMA}),
    ({"response_format": {"type": "structural_tag", **TAGS}}, {"structural_tag": TAGS}),
    ({"structured_outputs": {"json": SCHEMA}}, {"json_schema": SCHEMA}),
    ({"structured_outputs": {"json": TEXT}}, {"json_schema": SCHEMA}),
    ({"structured_outputs": {"json_object": True}}, {"json_schema": {"type": "object"}}),
    ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
    ({"structured_outputs": {"choice": ["a", "b"]}}, {"choice": ["a", "b"]}),
    ({"structured_outputs": {"grammar": LARK}}, {"lark": LARK}),
    ({"structured_outputs": {"structural_tag": TAGS}}, {"structural_tag": TAGS}),
    ({"guided_json": TEXT}, {"json_schema": SCHEMA}),
    ({"guided_regex": "a+"}, {"regex": "a+"}),
    ({"regex": "a+"}, {"regex": "a+"}),
    ({"guided_choice": ["a"]}, {"choice": ["a"]}),
    ({"guided_grammar": GBNF}, {"gbnf": GBNF}),
    ({"grammar": {"type": "regex", "value": "a+"}}, {"regex": "a+"}),
    ({"grammar": {"type": "json_schema", "value": SCHEMA}}, {"json_schema": SCHEMA}),
    ({"grammar": {"type": "yacc", "value": "%%\na: 'x';"}}, {"yacc": "%%\na: 'x';"}),
    ({"grammar": GBNF}, {"gbnf": GBNF}),
    ({"grammar": "%llguidance {}\n" + LARK}, {"lark": "%llguidance {}\n" + LARK}),
    ({"json_schema": SCHEMA}, {"json_schema": SCHEMA}),
    ({"logits_processors": {"grammar": {"regex": "a"}}}, {"regex": "a"}),
]


@pytest.mark.parametrize(("fields", "parameter"), FORMS, ids=map(str, range(len(FORMS))))
def test_forms_of_chats_and_completions(
    server: Any, fields: dict[str, Any], parameter: dict[str, Any]
) -> None:
    for answer in (server.chat(**fields), server.complete(**fields)):
        assert answer.status_code == 200, answer.text
        found = dict(server.echo.seen[-1].sampling.processors["grammar"])
        assert found.pop("field", "logits_processors") == next(iter(fields))
        assert found == parameter


def test_other_apis(server: Any) -> None:
    """Responses, Anthropic and Ollama."""
    form = {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}
    messages = [{"role": "user", "content": "hi"}]
    schema = {"type": "json_schema", "schema": SCHEMA}
    bodies: list[tuple[str, dict[str, Any], str]] = [
        ("/v1/responses", {"input": "hi", "text": {"format": form}}, "text.format"),
        (
            "/v1/messages",
            {"max_tokens": 9, "messages": messages, "output_config": {"format": schema}},
            "output_config.format",
        ),
        ("/api/chat", {"messages": messages, "format": SCHEMA, "stream": False}, "format"),
        ("/api/generate", {"prompt": "hi", "format": SCHEMA, "stream": False}, "format"),
    ]
    for path, body, field in bodies:
        answer = server.post(path, model="echo", **body)
        assert answer.status_code == 200, answer.text
        found = server.echo.seen[-1].sampling.processors
        assert found == {"grammar": {"json_schema": SCHEMA, "field": field}}, path
        if path == "/v1/responses":
            assert answer.json()["text"]["format"] == form
    body = {"messages": messages, "format": "json", "stream": False}
    assert server.post("/api/chat", model="echo", **body).status_code == 200
    found = server.echo.seen[-1].sampling.processors
    assert found == {"grammar": {"json_schema": {"type": "object"}, "field": "format"}}
    plain = {"input": "hi", "text": {"format": {"type": "text"}}}
    assert server.post("/v1/responses", model="echo", **plain).status_code == 200
    assert server.echo.seen[-1].sampling.processors == {}


def test_reasoning_that_the_prompt_begins_is_free(start: Any) -> None:
    """The grammar begins after it, unless the parameter names a marker of its own."""
    server = start(template=TEMPLATE)
    think = {"chat_template_kwargs": {"enable_thinking": True}}
    asks: list[tuple[dict[str, Any], str | None]] = [
        ({"guided_regex": "a", **think}, "</think>"),
        ({"guided_regex": "a"}, None),
        ({"logits_processors": {"grammar": {"regex": "a", "after": "b"}}, **think}, "b"),
    ]
    for fields, marker in asks:
        assert server.chat(**fields).status_code == 200
        assert server.echo.seen[-1].sampling.processors["grammar"].get("after") == marker
    assert server.complete("<think>", guided_regex="a").status_code == 200
    assert "after" not in server.echo.seen[-1].sampling.processors["grammar"]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"guided_json": {}, "regex": "a"}, "regex", "exclude each other"),
    ({"guided_json": {}, "guided_regex": "a"}, "guided_regex", "exclude each other"),
    (
        {"logits_processors": {"grammar": {}}, "guided_regex": "a"},
        "guided_regex",
        "logits_processors and guided_regex exclude each other",
    ),
    ({"processors": {}, "logits_processors": {}}, "processors", "the older name"),
    ({"guided_regex": "a", "min_tokens": 2}, "min_tokens", "where the answer ends"),
    ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos", "where the answer ends"),
    ({"structured_outputs": {}}, "structured_outputs", "expected one of json, regex"),
    (
        {"structured_outputs": {"regex": "a", "choice": ["a"]}},
        "structured_outputs",
        "got 2",
    ),
    ({"structured_outputs": {"whitespace": " "}}, "structured_outputs", "whitespace"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs", "not valid JSON"),
    ({"guided_json": "["}, "guided_json", "not valid JSON"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "schema is missing"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_", "is"),
    ({"response_format": {"type": "yaml"}}, "response_format.type", "yaml"),
    ({"response_format": {"type": "text", "schema": {}}}, "response_format", "type text"),
    ({"response_format": {"type": "json_object", "format": {}}}, "response_format", "format does"),
    (
        {"response_format": {"type": "json_schema", "json_schema": NAMED, "schema": {}}},
        "response_format",
        "schema does not belong",
    ),
    ({"grammar": {"type": "llguidance", "value": "x"}}, "grammar", "use lark or json_schema"),
    ({"grammar": {"type": "ebnf", "value": "x"}}, "grammar.type", "ebnf"),
    ({"logits_processors": ["grammar"]}, "logits_processors", "Expected"),
]


@pytest.mark.parametrize(("fields", "param", "words"), REFUSED, ids=map(str, range(len(REFUSED))))
def test_contradictions_are_refused_by_name(
    server: Any, fields: dict[str, Any], param: str, words: str
) -> None:
    answer = server.chat(**fields)
    error = answer.json()["error"]
    assert answer.status_code == 400 and words in error["message"], error
    assert error["param"].startswith(param), error
    assert server.chat(guided_regex="a").status_code == 200
