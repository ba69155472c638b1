"""Values between tags: the schema of the tool decides whether a value is text or JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from tiny.turns import Output, cuts, parse

from ostro.core.output import Piece, Tool
from ostro.core.records import Parser, resolve
from ostro.plugins.parsers.tagged_values import (
    ANY,
    MOST_CHARACTERS,
    MOST_LEVELS,
    MOST_STEPS,
    Kinds,
    SchemaReader,
    json_of,
    kinds_of,
)

DSML = "｜DSML｜"
NOTATIONS: Mapping[str, str] = {
    "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=value>\n{}\n</parameter>\n</function>\n"
    "</tool_call>",
    "seed_oss": "<seed:tool_call>\n<function=f>\n<parameter=value>{}</parameter>\n</function>\n"
    "</seed:tool_call>",
    "glm4": "<tool_call>f\n<arg_key>value</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>",
    "hunyuan3": "<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n"
    "<arg_key:opensource>value</arg_key:opensource>\n"
    "<arg_value:opensource>{}</arg_value:opensource>\n</tool_call:opensource>\n"
    "</tool_calls:opensource>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="f">\n<parameter name="value">{}</parameter>\n'
    "</invoke>\n</minimax:tool_call>",
    "deepseek_v32": f'<{DSML}function_calls>\n<{DSML}invoke name="f">\n'
    f'<{DSML}parameter name="value" string="false">{{}}</{DSML}parameter>\n</{DSML}invoke>\n'
    f"</{DSML}function_calls>",
}
"""A call in each notation with a tag per parameter; `{}` stands for the value."""
DEFINITIONS: dict[str, Any] = {
    "Code": {"type": "string", "enum": ["1", "2"]},
    "Text": {"type": "string"},
    "Range": {"type": "object", "properties": {"low": {"type": "integer"}}},
    "Same": {"$ref": "#/$defs/Text"},
    "Cycle": {"$ref": "#/$defs/Cycle"},
    "a/b~c": {"type": "string"},
}
TEXT, NULL, WHOLE = {"type": "string"}, {"type": "null"}, {"type": "integer"}
CODE, RANGE = {"$ref": "#/$defs/Code"}, {"$ref": "#/$defs/Range"}
CASES: Mapping[str, tuple[Any, str, Any]] = {
    "text": (TEXT, "42", "42"),
    "word": (TEXT, "true", "true"),
    "object as text": (TEXT, '{"a": 1}', '{"a": 1}'),
    "reference": (CODE, "1", "1"),
    "reference to a reference": ({"$ref": "#/$defs/Same"}, "1", "1"),
    "escaped reference": ({"$ref": "#/$defs/a~1b~0c"}, "1", "1"),
    "all of": ({"allOf": [{"$ref": "#/$defs/Text"}], "description": "d"}, "123", "123"),
    "all of two": ({"allOf": [{"type": ["string", "integer"]}, TEXT]}, "1", "1"),
    "beside all of": ({"allOf": [{"minLength": 1}], "type": "string"}, "1", "1"),
    "any of with null": ({"anyOf": [{"$ref": "#/$defs/Text"}, NULL]}, "2026", "2026"),
    "null of any of": ({"anyOf": [TEXT, NULL]}, "null", None),
    "postal code": ({"type": ["string", "null"]}, "03106", "03106"),
    "number as text": ({"type": ["string", "null"]}, "3.50", "3.50"),
    "None": ({"type": ["string", "null"]}, "None", None),
    "integer or null": ({"anyOf": [WHOLE, NULL], "default": 5}, "7", 7),
    "text or number": ({"type": ["string", "number"]}, "5", 5),
    "text or number, a word": ({"type": ["string", "number"]}, "five", "five"),
    "text or integer": ({"oneOf": [WHOLE, TEXT]}, "5.5", "5.5"),
    "constant": ({"const": "8"}, "8", "8"),
    "constant number": ({"const": 8}, "8", 8),
    "enumeration": ({"enum": ["1", "2"]}, "1", "1"),
    "enumeration of both": ({"enum": ["1", 2]}, "1", "1"),
    "number of an enumeration": ({"enum": ["1", 2]}, "2", 2),
    "null of an enumeration": ({"enum": ["on", None]}, "null", None),
    "enumeration within types": ({"type": ["string", "integer"], "enum": ["7"]}, "7", "7"),
    "any of constants": ({"anyOf": [{"const": "1"}, {"const": "2"}]}, "2", "2"),
    "object": (RANGE, '{"low": 3}', {"low": 3}),
    "object or null": ({"oneOf": [RANGE, NULL]}, '{"low": 4}', {"low": 4}),
    "list of Python": ({"type": "array"}, "['a', 'b']", ["a", "b"]),
    "tuple of Python": ({"type": "array"}, "('a', 1)", ["a", 1]),
    "object of Python": ({"type": "object"}, "{'b': True, 'n': None}", {"b": True, "n": None}),
    "referred object of Python": (RANGE, "{'low': 3}", {"low": 3}),
    "object of Python or null": ({"anyOf": [RANGE, NULL]}, "{'low': 3}", {"low": 3}),
    "words of JSON in Python": (
        {"type": "object"},
        "{'a': true, 'b': null}",
        {"a": True, "b": None},
    ),
    "text like Python": (TEXT, "['a']", "['a']"),
    "text or null like Python": ({"type": ["string", "null"]}, "['a']", "['a']"),
    "unknown like Python": ({}, "['a']", "['a']"),
    "call of Python": ({"type": "array"}, "[open('x')]", "[open('x')]"),
    "infinity of Python": ({"type": "array"}, "[1e999, 'a']", "[1e999, 'a']"),
    "set of Python": ({"type": "array"}, "{'a'}", "{'a'}"),
    "flag": ({"type": "boolean"}, "True", True),
    "number": ({"type": "number"}, "1e3", 1000.0),
    "long integer": (WHOLE, "90071992547409931", 90071992547409931),
    "NaN": ({"type": "number"}, "NaN", "NaN"),
    "negative infinity": ({"type": "number"}, "-Infinity", "-Infinity"),
    "NaN within": ({"type": "array"}, "[NaN]", "[NaN]"),
    "NaN of no type": ({}, "NaN", "NaN"),
    "date": (WHOLE, "2026-01-15", "2026-01-15"),
    "cycle": ({"$ref": "#/$defs/Cycle"}, "5", 5),
    "reference to nothing": ({"$ref": "#/$defs/none"}, "5", 5),
    "reference elsewhere": ({"$ref": "https://example.com/x"}, "5", 5),
    "no schema": (True, "5", 5),
    "types that exclude each other": ({"allOf": [TEXT, WHOLE]}, "5", 5),
    "keywords of other types": ({"type": 5, "anyOf": 5, "enum": 5, "$ref": 5}, "5", 5),
}
"""Schemas, the text of a value, and the value."""


def parameters(schema: Any) -> dict[str, Any]:
    return {"type": "object", "$defs": DEFINITIONS, "properties": {"value": schema}}


def json_value(text: str) -> Any:
    """The value of strict JSON."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", NOTATIONS)
def test_a_value_has_the_type_of_its_schema(
    parsers: Mapping[str, Parser], name: str, case: str
) -> None:
    schema, text, value = CASES[case]
    tools = [Tool("f", parameters(schema))]
    output = Output("", (Piece(NOTATIONS[name].format(text)),))
    kind = resolve(parsers[name].parser)
    for cut in [output, next(cuts(output))]:
        found = parse(kind, cut, tools)
        assert found.ended == [0] and not found.text
        read = json_value(found.calls[0][1])["value"]
        assert read == value and type(read) is type(value)


def test_parameters_without_an_entry_have_the_schema_of_others(
    parsers: Mapping[str, Parser],
) -> None:
    tools = [Tool("f", {"type": "object", "additionalProperties": TEXT})]
    for name, call in NOTATIONS.items():
        found = parse(resolve(parsers[name].parser), Output("", (Piece(call.format("5")),)), tools)
        assert json.loads(found.calls[0][1]) == {"value": "5"}


def nested(depth: int) -> Any:
    """A schema that refers to itself twice on each of many levels."""
    return {f"L{i}": {"anyOf": [{"$ref": f"#/$defs/L{i + 1}"}] * 2} for i in range(depth)}


class CountingReader(SchemaReader):
    """Counts the subschemas that it reads."""

    subschemas = 0

    def kinds(self, schema: Any, level: int) -> Kinds:
        self.subschemas += 1
        return super().kinds(schema, level)


@pytest.mark.parametrize(
    ("schema", "definitions"),
    [
        ({"$ref": "#/$defs/L0"}, nested(60)),
        ({"allOf": [{"anyOf": [{"$ref": "#"}] * 50}] * 50}, {}),
        ({"enum": [str(i) for i in range(500_000)]}, {}),
        ({"anyOf": [{"$ref": "#/$defs/many"}] * 5000}, {"many": {"enum": [*range(5000)]}}),
    ],
    ids=["doubling", "cycles", "enumeration", "shared enumeration"],
)
def test_hostile_schemas_end(schema: Any, definitions: Any) -> None:
    root = {"$defs": definitions, **schema}
    reader = CountingReader(root)
    reader.kinds(schema, 0)
    assert 0 < reader.subschemas <= MOST_STEPS + MOST_LEVELS
    assert reader.left <= 0 and kinds_of(schema, root) == ANY


def test_deep_schemas_end() -> None:
    schema: Any = TEXT
    for _ in range(100_000):
        schema = {"anyOf": [schema]}
    assert json_of("5", kinds_of(schema, {})) == "5"


@pytest.mark.parametrize(
    "text",
    [
        "[" * 50_000,
        "[" * 3000 + "'a'" + "]" * 3000,
        "[" + "-" * 60_000 + "1]",
        "['a'," + "not " * 15_000 + "1]",
        "['a'" + "+1" * 30_000 + "]",
        "['a'" + ".a" * 30_000 + "]",
        "['a'" + "()" * 30_000 + "]",
        "[9**9**9**9]",
        "['a'*9**9]",
        "[" + "9" * 10_000 + ", 'a']",
        "['" + "a" * MOST_CHARACTERS + "']",
        "['\ud800']",
        "['a\x00']",
    ],
    ids=range(13),
)
def test_hostile_literals_are_text(text: str) -> None:
    array = kinds_of({"type": "array"}, {})
    assert json.loads(json_of(text, array)) in (text, ["\ud800"])


def test_the_longest_literal_is_one() -> None:
    text = f"['{'a' * (MOST_CHARACTERS - 4)}']"
    assert json.loads(json_of(text, kinds_of({"type": "array"}, {}))) == [text[2:-2]]


@pytest.mark.parametrize(
    ("name", "call", "arguments"),
    [
        ("gemma4", "<|tool_call>call:f{value:NaN,more:-Infinity}<tool_call|>", True),
        ("gemma4", "<|tool_call>call:f{value:1e999}<tool_call|>", False),
        ("lfm2", "<|tool_call_start|>[f(value=1e999)]<|tool_call_end|>", False),
    ],
)
def test_no_notation_writes_numbers_that_are_not_json(
    parsers: Mapping[str, Parser], name: str, call: str, arguments: bool
) -> None:
    found = parse(resolve(parsers[name].parser), Output("", (Piece(call),)), [Tool("f", {})])
    if arguments:
        assert json_value(found.calls[0][1]) == {"value": "NaN", "more": "-Infinity"}
    else:  # what the model wrote, as other malformed arguments
        assert "1e999" in found.text + "".join(text for _, text in found.calls)
