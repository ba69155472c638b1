"""What the text of an answer has to satisfy: the fields of OpenAI's API and of other servers.

Raises RequestError for a malformed field, and for two fields that constrain the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ostro.core.errors import RequestError, Unsupported
from ostro.core.messages.text_requests import (
    JSON_OBJECT,
    Choices,
    Constraint,
    ConstraintValue,
    JsonSchema,
    Regex,
    StructuralTag,
)
from ostro.core.messages.text_requests import Grammar as TextGrammar

if TYPE_CHECKING:
    from ostro.entrypoints.api.openai.bodies import TextBody

JSON, TAGS = ("json_object", "json_schema"), ("structural_tag",)
FORMAT_FIELDS: Mapping[str, tuple[str, ...]] = {
    "json_schema": JSON,
    "schema": JSON,
    "structures": TAGS,
    "triggers": TAGS,
    "format": TAGS,
}
"""Fields of `response_format`, and the types that have them."""


class NamedSchema(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A JSON schema with a name. Every schema is enforced, whatever `strict` is."""

    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The form of the output: text, JSON, or vLLM's text with tags that begin JSON.

    `schema` without a name is llama.cpp's form.
    """

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: NamedSchema | None = None
    schema: dict[str, Any] | bool | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None
    format: dict[str, Any] | None = None


class Grammar(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A grammar in mistral.rs's form."""

    type: Literal["regex", "json_schema", "lark", "yacc", "gbnf", "llguidance"]
    value: Any


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The form of the output, as vLLM states it; one of the fields."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None


def constraint_of(body: TextBody) -> Constraint | None:
    """Return the constraint that a request states, None without one."""
    constraints = list(constraints_of(body))
    if len(constraints) > 1:
        fields = [constraint.field for constraint in constraints]
        names = " and ".join(fields)
        raise RequestError(f"{names} exclude each other; use one of them", param=fields[1])
    return constraints[0] if constraints else None


def constraints_of(body: TextBody) -> Iterator[Constraint]:
    """Yield the constraints of all fields."""
    if (constraint := format_constraint(body.response_format)) is not None:
        yield constraint
    if body.json_schema is not None:
        yield Constraint(JsonSchema(body.json_schema), "json_schema")
    if isinstance(body.grammar, str):
        yield Constraint(text_grammar(body.grammar), "grammar")
    elif body.grammar is not None:
        yield Constraint(typed_grammar(body.grammar), "grammar")
    if body.guided_json is not None:
        yield Constraint(json_schema(body.guided_json, "guided_json"), "guided_json")
    if body.guided_regex is not None:
        yield Constraint(Regex(body.guided_regex), "guided_regex")
    if body.regex is not None:
        yield Constraint(Regex(body.regex), "regex")
    if body.guided_choice is not None:
        yield Constraint(Choices(body.guided_choice), "guided_choice")
    if body.guided_grammar is not None:
        yield Constraint(text_grammar(body.guided_grammar), "guided_grammar")
    if body.structured_outputs is not None:
        yield Constraint(structured_output(body.structured_outputs), "structured_outputs")


def format_constraint(form: ResponseFormat | None) -> Constraint | None:
    """Return the constraint of OpenAI's `response_format`; None for text."""
    if form is None:
        return None
    check_format(form)
    return None if form.type == "text" else Constraint(format_value(form), "response_format")


def check_format(form: ResponseFormat) -> None:
    """Raise RequestError for fields of `response_format` that its type lacks."""
    given = [name for name in FORMAT_FIELDS if getattr(form, name) is not None]
    wrong = [name for name in given if form.type not in FORMAT_FIELDS[name]]
    if not wrong and {"schema", "json_schema"} <= set(given):
        wrong = ["schema"]
    if wrong:
        raise RequestError(
            f"response_format.{wrong[0]} does not belong to the type {form.type}; leave it out",
            param="response_format",
        )


def format_value(form: ResponseFormat) -> JsonSchema | StructuralTag:
    """Return the value of OpenAI's `response_format`, with `schema` as llama.cpp accepts it."""
    if form.type == "structural_tag":
        tag = {"structures": form.structures, "triggers": form.triggers, "format": form.format}
        return StructuralTag({key: value for key, value in tag.items() if value is not None})
    named = form.json_schema
    schema = form.schema if named is None else named.schema
    if schema is not None:
        return JsonSchema(schema)
    if form.type == "json_object" and named is None:
        return JSON_OBJECT
    raise RequestError(
        "response_format.json_schema.schema is missing; use json_object for any JSON object",
        param="response_format",
    )


def structured_output(outputs: StructuredOutputs) -> ConstraintValue:
    """Return the value of vLLM's `structured_outputs`."""
    names = outputs.__struct_fields__
    given = [name for name in names if getattr(outputs, name) not in (None, False)]
    if len(given) != 1:
        raise RequestError(
            f"structured_outputs: expected one of {', '.join(names)}; got {len(given)}",
            param="structured_outputs",
        )
    if outputs.json is not None:
        return json_schema(outputs.json, "structured_outputs.json")
    if outputs.regex is not None:
        return Regex(outputs.regex)
    if outputs.choice is not None:
        return Choices(outputs.choice)
    if outputs.grammar is not None:
        return text_grammar(outputs.grammar)
    if outputs.structural_tag is not None:
        return StructuralTag(parsed(outputs.structural_tag, "structured_outputs.structural_tag"))
    return JSON_OBJECT


def typed_grammar(grammar: Grammar) -> ConstraintValue:
    """Return the value of mistral.rs's `grammar`, an object with `type` and `value`."""
    kind, value = grammar.type, grammar.value
    if kind == "llguidance":
        raise Unsupported(
            "grammar: the type 'llguidance' is not supported; use lark or json_schema",
            param="grammar",
        )
    if kind == "json_schema":
        return json_schema(value, "grammar")
    return Regex(value) if kind == "regex" else TextGrammar(kind, value)


def text_grammar(text: str) -> TextGrammar:
    """Return a grammar in GBNF, which defines rules by `::=`, or else in Lark."""
    is_gbnf = "::=" in text and not text.startswith("%llguidance")
    return TextGrammar("gbnf" if is_gbnf else "lark", text)


def json_schema(value: Any, field: str) -> JsonSchema:
    """Return a JSON schema, which may be given as text."""
    return JsonSchema(parsed(value, field))


def parsed(value: Any, field: str) -> Any:
    """Return a JSON value, parsed if it is a text."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        name = field.partition(".")[0]
        raise RequestError(f"{field} is not valid JSON", param=name) from None
