"""JSON schemas through the masks: valid instances pass, invalid ones do not, faults have a path."""

from __future__ import annotations

import copy
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny.grammars import Walker, vocabulary

from ostro.core.errors import RequestError
from ostro.plugins.logits.grammar.processor import GrammarProcessor
from ostro.plugins.logits.grammar.schema import UNSUPPORTED, read_schema

INTEGER, TEXT = {"type": "integer"}, {"type": "string"}
CAT = {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": INTEGER}}
DOG = {"type": "object", "properties": {"kind": {"enum": ["dog", "wolf"]}, "name": TEXT}}
PETS = {
    "$defs": {"Cat": {**CAT, "required": ["kind"]}, "Dog": {**DOG, "required": ["kind"]}},
    "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
    "discriminator": {"propertyName": "kind"},
}
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"value": INTEGER, "next": {"$ref": "#/$defs/node"}},
            "required": ["value"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
CLOSED = {"properties": {"a": INTEGER, "b": TEXT}, "required": ["a"], "additionalProperties": False}

SAMPLES: list[tuple[str, Any, list[Any], list[Any]]] = [
    ("true", True, [1, "a", None, {"a": [1]}], []),
    ("types", {"type": ["null", "boolean"]}, [None, True], [0, "", []]),
    ("integer", INTEGER, [0, -7, 10**12], [1.5, "1", None]),
    ("bounds", {"type": "integer", "minimum": -2, "exclusiveMaximum": 11}, [-2, 10], [-3, 11]),
    ("multiple", {"type": "integer", "multipleOf": 3}, [0, 9, -3], [1, 10]),
    ("number", {"type": "number", "maximum": 2.5}, [2.5, -1e3, 0.25], [2.51, "2"]),
    ("length", {"type": "string", "minLength": 1, "maxLength": 2}, ["é", "ab"], ["", "abc"]),
    ("pattern", {"type": "string", "pattern": "^[a-z]+[0-9]$"}, ["ab1"], ["1", "a12", "A1"]),
    ("unanchored", {"type": "string", "pattern": "b"}, ["b", "abc"], ["ac"]),
    ("escapes", TEXT, ['q"\\/\n\t', "é🙂\u2028", "\x01"], []),
    ("enum", {"enum": ["a", 1, None, {"k": [True]}]}, ["a", 1, None, {"k": [True]}], ["b", 2, {}]),
    ("const", {"const": "q'\"x"}, ["q'\"x"], ["qx"]),
    ("closed", CLOSED, [{"a": 1}, {"a": 1, "b": "x"}], [{}, {"b": "x"}, {"a": 1, "c": 2}]),
    (
        "open",
        {"type": "object", "properties": {"a": INTEGER}, "additionalProperties": True},
        [{}, {"a": 1, "z": []}],
        [{"a": ""}],
    ),
    ("extra", {"type": "object", "additionalProperties": INTEGER}, [{"x": 1}], [{"x": "1"}]),
    (
        "patternProperties",
        {"patternProperties": {"^n_": INTEGER}, "additionalProperties": False, "type": "object"},
        [{"n_a": 1}, {}],
        [{"n_a": "1"}, {"a": 1}],
    ),
    ("items", {"type": "array", "items": INTEGER, "maxItems": 2}, [[], [1, 2]], [[1, 2, 3], ["a"]]),
    (
        "prefixItems",
        {"type": "array", "prefixItems": [INTEGER, TEXT], "items": False, "minItems": 1},
        [[1], [1, "a"]],
        [[], ["a"], [1, "a", 2]],
    ),
    ("counts as floats", {"type": "array", "minItems": 1.0}, [[1]], [[]]),
    ("uniqueItems false", {"type": "array", "uniqueItems": False}, [[1, 1]], [1]),
    ("anyOf", {"anyOf": [INTEGER, {"type": "string", "maxLength": 1}]}, [1, "a"], ["ab", None]),
    ("allOf", {"allOf": [{"minimum": 2}, {"maximum": 4}], "type": "integer"}, [2, 4], [1, 5]),
    ("oneOf of constants", PETS, [{"kind": "cat", "lives": 9}, {"kind": "wolf"}], [{"kind": "x"}]),
    ("oneOf of types", {"oneOf": [INTEGER, TEXT]}, [1, "a"], [None, 1.5]),
    ("recursion", TREE, [{"value": 1, "next": {"value": 2}}], [{"next": {}}, {"value": "1"}]),
    (
        "anchor",
        {"$defs": {"x": {"$anchor": "it", **INTEGER}}, "items": {"$ref": "#it"}},
        [[1]],
        [["a"]],
    ),
    ("escaped pointer", {"$defs": {"a/b": INTEGER}, "$ref": "#/$defs/a~1b"}, [1], ["a"]),
    ("date", {"type": "string", "format": "date"}, ["2024-02-29"], ["2024-13-01", "x"]),
    ("uuid", {"type": "string", "format": "uuid"}, ["12345678-1234-1234-1234-123456789abc"], ["1"]),
    ("email", {"type": "string", "format": "email"}, ["a@b.org"], ["a"]),
    ("format of numbers", {"type": "integer", "format": "int64"}, [5], [5.5]),
    ("annotations", {**INTEGER, "title": "T", "default": "x", "x-order": 1}, [1], ["x"]),
    ("draft-07", {"$schema": "http://json-schema.org/draft-07/schema#", **INTEGER}, [1], ["a"]),
]


@pytest.mark.parametrize("kind", ["starter", "sentencepiece"])
@pytest.mark.parametrize("name", [sample[0] for sample in SAMPLES])
def test_valid_instances_pass_and_invalid_ones_do_not(name: str, kind: str) -> None:
    _, schema, valid, invalid = next(sample for sample in SAMPLES if sample[0] == name)
    walker = Walker({"json_schema": copy.deepcopy(schema)}, vocabulary(kind))
    assert [value for value in valid if not walker.accepts_json(value)] == []
    assert [value for value in invalid if walker.accepts_json(value)] == []


DRAWN: list[tuple[Any, Callable[[Any], bool]]] = [
    ({"type": "object", **CLOSED}, lambda x: type(x["a"]) is int and x.keys() <= {"a", "b"}),
    ({"type": "array", "prefixItems": [INTEGER], "items": False}, lambda x: len(x) < 2),
    (TREE, lambda x: type(x["value"]) is int and x.keys() <= {"value", "next"}),
    ({"type": "integer", "minimum": 7, "maximum": 1200}, lambda x: 7 <= x <= 1200),
]


@pytest.mark.parametrize(("schema", "holds"), DRAWN, ids=map(str, range(len(DRAWN))))
def test_random_answers_satisfy_the_schema(schema: Any, holds: Callable[[Any], bool]) -> None:
    """Tokens drawn at random from the masks, as by a model that knows nothing."""
    walker = Walker({"json_schema": copy.deepcopy(schema)}, vocabulary("trained"))
    answers = [answer for seed in range(12) if (answer := walker.draw(seed, 250))]
    assert len(answers) > 3
    assert [answer for answer in answers if not holds(json.loads(answer))] == []


def test_white_space_is_allowed_and_ends() -> None:
    walker = Walker({"json_schema": True}, vocabulary())
    value = {"a": [1, {"b": None}], "c": "x"}
    for indent in (None, 1, 2, 4):
        assert walker.accepts(json.dumps(value, indent=indent))
    for text in (" {}", "{} ", "{" + " " * 3 + "}", "{\n\n\n}", "{\t}"):
        assert not walker.accepts(text), text


def test_properties_keep_the_order_of_the_schema() -> None:
    walker = Walker({"json_schema": {"properties": {"b": True, "a": True}}}, vocabulary())
    assert walker.accepts('{"b":1,"a":2}') and not walker.accepts('{"a":2,"b":1}')


ONE_TEXT: dict[str, Any] = {"type": "object", "properties": {"a": TEXT}}
REFERRED: dict[str, Any] = {"$ref": "#/$defs/one", "$defs": {"one": ONE_TEXT}}
COMPLETE: list[tuple[Any, Any, Any]] = [
    (ONE_TEXT, {"a": "x"}, {"a": "x", "b": 1}),
    ({**ONE_TEXT, "required": ["a"], "minProperties": 1}, {"a": "x"}, {"a": "x", "b": 1}),
    ({"type": "object", "properties": {}}, {}, {"a": 1}),
    ({"properties": {"o": ONE_TEXT}}, {"o": {"a": "x"}}, {"o": {"b": 1}}),
    ({"items": ONE_TEXT}, [{"a": "x"}], [{"b": 1}]),
    ({"anyOf": [ONE_TEXT, {"type": "null"}]}, {"a": "x"}, {"b": 1}),
    (REFERRED, {"a": "x"}, {"b": 1}),
    ({"allOf": [ONE_TEXT]}, {"a": "x"}, {"b": 1}),
    ({"properties": {"o": {"$ref": "#"}}}, {"o": {"o": {}}}, {"o": {"b": 1}}),
]
"""A schema whose objects list their properties, an answer, and one with another property."""
COMBINED: list[tuple[Any, Any]] = [
    ({**ONE_TEXT, "required": ["b"]}, {"a": "x", "b": 1}),
    ({**ONE_TEXT, "required": ["a"], "minProperties": 2}, {"a": "x", "b": 1}),
    ({**ONE_TEXT, "additionalProperties": {}}, {"a": "x", "b": 1}),
    ({**ONE_TEXT, "patternProperties": {"^b": INTEGER}}, {"a": "x", "b": 1}),
    ({"allOf": [ONE_TEXT, {"properties": {"b": INTEGER}}]}, {"a": "x", "b": 1}),
    ({"allOf": [{"allOf": [ONE_TEXT]}, {"required": ["b"]}]}, {"a": "x", "b": 1}),
    ({"properties": {"b": INTEGER}, "anyOf": [ONE_TEXT, {"required": ["c"]}]}, {"b": 1, "a": "x"}),
    ({**REFERRED, "properties": {"b": INTEGER}}, {"a": "x", "b": 1}),
    ({**REFERRED, "allOf": [{"properties": {"b": INTEGER}}]}, {"a": "x", "b": 1}),
    (
        {
            "properties": {
                "alone": {"$ref": "#/$defs/one"},
                "both": {"$ref": "#/$defs/one", "required": ["b"]},
            },
            "$defs": {"one": ONE_TEXT},
        },
        {"both": {"a": "x", "b": 1}},
    ),
]
"""A schema of an object that satisfies several, and an answer."""


@pytest.mark.parametrize(("schema", "valid", "other"), COMPLETE, ids=map(str, range(len(COMPLETE))))
def test_objects_have_the_properties_that_are_listed(schema: Any, valid: Any, other: Any) -> None:
    walker = Walker({"json_schema": copy.deepcopy(schema)}, vocabulary())
    assert walker.accepts_json(valid) and not walker.accepts_json(other)


@pytest.mark.parametrize(("schema", "valid"), COMBINED, ids=map(str, range(len(COMBINED))))
def test_an_object_of_several_schemas_has_the_properties_of_all(schema: Any, valid: Any) -> None:
    assert Walker({"json_schema": copy.deepcopy(schema)}, vocabulary()).accepts_json(valid)


def node(following: Any, **other: Any) -> dict[str, Any]:
    """An object whose required property `next` has a schema."""
    return {"type": "object", "properties": {"next": following}, "required": ["next"], **other}


ENDLESS: list[Any] = [
    node({"$ref": "#"}),
    node({"type": "array", "items": {"$ref": "#"}, "minItems": 1}),
    node({"type": "array", "prefixItems": [True, {"$ref": "#"}], "minItems": 2}),
    node({"allOf": [{"$ref": "#"}, {"type": "object"}]}),
    node({"anyOf": [{"$ref": "#"}, {"$ref": "#/properties/next"}]}),
    {"$defs": {"a": node({"$ref": "#b"}), "b": node({"$ref": "#/$defs/a"}, **{"$anchor": "b"})}}
    | {"$ref": "#b"},
]
"""Schemas whose values contain themselves without end."""
FINITE: list[tuple[Any, Any]] = [
    (node({"anyOf": [{"type": "null"}, {"$ref": "#"}]}), {"next": {"next": None}}),
    (node({"type": "array", "items": {"$ref": "#"}}), {"next": [{"next": []}]}),
    (node({"type": ["array", "integer"], "items": {"$ref": "#"}, "minItems": 1}), {"next": 1}),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}}, {"a": {"a": {}}}),
    (node({"$ref": "#/$defs/b"}, **{"$defs": {"b": {"type": "integer"}}}), {"next": 7}),
]
"""Schemas that refer to themselves, with values that end."""


@pytest.mark.parametrize(("schema", "value"), FINITE, ids=map(str, range(len(FINITE))))
def test_a_schema_may_refer_to_itself(schema: Any, value: Any) -> None:
    assert Walker({"json_schema": schema}, vocabulary()).accepts_json(value)


FAULTS: list[tuple[Any, str]] = [
    (False, "#: the schema is false"),
    ({"type": 7}, "#/type: 7; expected one of null, boolean, integer"),
    ({"type": []}, "#/type: an empty list"),
    ({"type": ["string", "text"]}, "#/type: 'text'"),
    ({"properties": {"a": {"type": "int"}}}, "#/properties/a/type: 'int'"),
    ({"items": [{"minimum": "1"}]}, "#/items/0/minimum: '1'; expected a number"),
    ({"multipleOf": 0}, "#/multipleOf: 0; expected a number above 0"),
    ({"minLength": -1}, "#/minLength: -1"),
    ({"minItems": 1.5}, "#/minItems: 1.5; expected a whole number"),
    ({"maxItems": True}, "#/maxItems: True; expected a whole number"),
    ({"anyOf": []}, "#/anyOf: expected a list of one schema or more"),
    ({"anyOf": [1]}, "#/anyOf/0: a schema is a number"),
    ({"properties": []}, "#/properties: expected an object of schemas by name"),
    ({"required": "a"}, "#/required: expected a list of property names"),
    ({"pattern": 1}, "#/pattern: a number; expected a text"),
    ({"type": "string", "format": "color"}, "#/format: 'color' is not supported; use one of"),
    ({"enum": []}, "#/enum: an empty list"),
    ({"enum": 3}, "#/enum: 3; expected a list"),
    ({"const": 1, "enum": [2, 3]}, "#/const: const is not among the values of enum"),
    ({"minimum": 3, "maximum": 1}, "#/minimum: minimum 3 excludes maximum 1"),
    ({"minimum": 3, "exclusiveMaximum": 3}, "minimum must be below exclusiveMaximum"),
    ({"items": {"minLength": 2, "maxLength": 1}}, "#/items/minLength: minLength 2 excludes"),
    ({"minItems": 2, "maxItems": 1}, "#/minItems: minItems 2 excludes maxItems 1"),
    ({"$ref": "#/$defs/no", "$defs": {"yes": True}}, "no '#/$defs/no'; it has #/$defs/yes"),
    ({"items": {"$ref": "#nope"}}, "#/items/$ref: no $anchor 'nope' in the schema; it has no"),
    ({"$ref": "http://example.org/s.json"}, "#/$ref: only references within the document"),
    ({"$ref": "file:///etc/passwd"}, "#/$ref: only references within the document"),
    ({"$ref": "#"}, "#: no value satisfies this schema: it requires itself"),
    (
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        "#/$defs/a: no value satisfies this schema",
    ),
    *[(schema, "requires itself") for schema in ENDLESS],
    ({"minLenght": 3}, "#/minLenght: unknown keyword 'minLenght'; did you mean 'minLength'?"),
    ({"properties": {"a/b": {"item": True}}}, "#/properties/a~1b/item: unknown keyword 'item'"),
    ({"items": {"$id": "x"}}, "#/items/$id: $id is supported at the root"),
    ({"$schema": "https://example.org/mine"}, "#/$schema: unknown draft; expected one of"),
    ({"oneOf": [INTEGER, {"type": "number"}]}, "oneOf: its branches may overlap"),
    ({"type": "string", "pattern": "(?!a)b"}, "look-around"),
    ({"type": "string", "pattern": "^a$", "const": "b"}, "Unsatisfiable"),
    ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "'a' is unsatisfiable"),
    *[({keyword: {}}, f"the keyword '{keyword}' is not supported; ") for keyword in UNSUPPORTED],
]


@pytest.mark.parametrize(("schema", "message"), FAULTS, ids=map(str, range(len(FAULTS))))
def test_a_fault_has_a_path_and_the_next_schema_compiles(schema: Any, message: str) -> None:
    with pytest.raises(RequestError, match=re.escape(message)) as caught:
        GrammarProcessor.prepare({"json_schema": schema, "field": "format"}, vocabulary())
    assert str(caught.value).startswith("format: ") and caught.value.param == "format"
    assert Walker({"json_schema": INTEGER}, vocabulary()).accepts("1")


def test_the_documentation_lists_what_is_refused() -> None:
    page = (Path(__file__).parents[3] / "docs" / "structured-output.md").read_text()
    assert [keyword for keyword in UNSUPPORTED if f"`{keyword}`" not in page] == []


def test_only_an_exclusive_one_of_becomes_any_of() -> None:
    def has_any_of(*branches: Any) -> bool:
        return "anyOf" in read_schema({"oneOf": list(branches)})

    assert has_any_of(TEXT, INTEGER) and has_any_of({"const": "a"}, {"enum": ["b"]})
    assert not has_any_of(INTEGER, {"type": "number"})
    assert not has_any_of({"const": "a"}, {"enum": ["a", "b"]})
    assert not has_any_of(CAT, DOG), "an object without `kind` satisfies both"
    assert not has_any_of(True, TEXT)


SUITE = Path(os.environ.get("JSON_SCHEMA_SUITE", "")) / "tests" / "draft2020-12"
KNOWN = Counter(
    {
        "additionalProperties.json": 1,  # properties that are not listed
        "allOf.json": 2,  # properties in another order
        "anyOf.json": 1,  # properties that are not listed
        "const.json": 5,  # 1.0 for 1, and properties in another order
        "enum.json": 4,  # 1.0 for 1
        "format.json": 10,  # formats are asserted, not annotations
        "properties.json": 1,  # properties that are not listed
        "type.json": 1,  # 1.0 for an integer
    }
)
"""Valid instances that are rejected, by file; docs/structured-output.md lists the reasons."""


def groups() -> Iterator[tuple[str, Any]]:
    for file in sorted(SUITE.glob("*.json")):
        for group in json.loads(file.read_text()):
            yield file.name, group


@pytest.mark.peer
@pytest.mark.skipif(not SUITE.is_dir(), reason="JSON_SCHEMA_SUITE names no JSON-Schema-Test-Suite")
@pytest.mark.parametrize("kind", ["starter", "trained", "sentencepiece"])
def test_the_json_schema_test_suite(kind: str) -> None:
    """No invalid instance passes; valid ones are rejected for documented reasons alone."""
    rejected, passed, compiled = Counter[str](), list[str](), 0
    for name, group in groups():
        try:
            walker = Walker({"json_schema": group["schema"]}, vocabulary(kind))
        except RequestError:
            continue
        compiled += len(group["tests"])
        for test in group["tests"]:
            found = walker.accepts(json.dumps(test["data"], ensure_ascii=False))
            if found and not test["valid"]:
                passed.append(f"{name}: {group['description']}: {test['description']}")
            elif not found and test["valid"]:
                rejected[name] += 1
    assert not passed and rejected == KNOWN and compiled > 600
