"""Structured output: a constraint of the answer as the parameter of the processor "grammar"."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from ostro.errors import RequestError, UsageError
from ostro.pipelines import (
    Choices,
    Constraint,
    Grammar,
    JsonSchema,
    Regex,
    Sampling,
    StructuralTag,
    TextRequest,
)

GRAMMAR = "grammar"
"""The name of the logits processor."""
BUDGET = "reasoning_budget"
"""The name of the logits processor that ends reasoning."""
ARGUMENTS = ("schema", "regex", "choice", "lark", "gbnf", "yacc", "structural_tag")
"""Arguments of Python's `generate`."""


def processors_of(request: TextRequest) -> dict[str, Any]:
    """The parameters of logits processors of a request, a grammar among them.

    Raises RequestError for two constraints of the output.
    """
    processors, constraint = dict(request.logits_processors), request.constraint
    if constraint is None:
        return processors
    if GRAMMAR in processors:
        raise RequestError(
            f"logits_processors and {constraint.field} exclude each other; use one of them",
            param=constraint.field,
        )
    return {**processors, GRAMMAR: grammar_parameter(constraint)}


def grammar_parameter(constraint: Constraint) -> dict[str, Any]:
    """The parameter of the logits processor "grammar" for a constraint."""
    match constraint.value:
        case JsonSchema(schema=schema):
            grammar: dict[str, Any] = {"json_schema": schema}
        case Regex(pattern=pattern):
            grammar = {"regex": pattern}
        case Choices(texts=texts):
            grammar = {"choice": texts}
        case Grammar(notation=notation, text=text):
            grammar = {notation: text}
        case StructuralTag(value=tag):
            grammar = {"structural_tag": tag}
    return {**grammar, "field": constraint.field}


def check_ends(sampling: Sampling) -> Sampling:
    """Return the sampling. Raises RequestError for fields that contradict a grammar.

    A grammar decides where the answer ends.
    """
    for name in ("min_tokens", "ignore_eos"):
        if GRAMMAR in sampling.processors and getattr(sampling, name):
            raise RequestError(
                f"{name} and structured output exclude each other: the grammar decides where the "
                f"answer ends; leave {name} out",
                param=name,
            )
    return sampling


def take_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `Sampling` from arguments of Python, a grammar among `processors`.

    Raises UsageError for two grammars and for a type without a JSON schema.
    """
    fields = {name: value for name, value in values.items() if name not in ARGUMENTS}
    given = {name: values[name] for name in ARGUMENTS if values.get(name) is not None}
    processors = fields.get("processors") or {}
    if len(given) + (GRAMMAR in processors) > 1:
        raise UsageError(f"{', '.join(given)}: one grammar at a time constrains an answer")
    for name, value in given.items():
        fields["processors"] = {
            **processors,
            GRAMMAR: grammar_parameter(constraint_of(name, value)),
        }
    return fields


def constraint_of(argument: str, value: Any) -> Constraint:
    """The constraint that an argument of Python states. Raises as `schema_of`."""
    match argument:
        case "schema":
            return Constraint(JsonSchema(schema_of(value)), argument)
        case "regex":
            return Constraint(Regex(value), argument)
        case "choice":
            return Constraint(Choices(value), argument)
        case "structural_tag":
            return Constraint(StructuralTag(value), argument)
        case "lark" | "gbnf" | "yacc" as notation:
            return Constraint(Grammar(notation, value), argument)
    raise AssertionError(f"{argument} is none of ARGUMENTS")


def schema_of(value: Any) -> Any:
    """The JSON schema of a dict, a pydantic model, or a type that msgspec or pydantic knows.

    Raises UsageError for others.
    """
    if isinstance(value, dict | bool):
        return value
    if hasattr(value, "model_json_schema"):
        return value.model_json_schema()
    try:
        return msgspec.json.schema(value)
    except (TypeError, RuntimeError) as error:
        reason: Exception = error
    # A type with pydantic models inside implies that pydantic is imported.
    if (pydantic := sys.modules.get("pydantic")) is not None:
        try:
            return pydantic.TypeAdapter(value).json_schema()
        except pydantic.PydanticUserError as error:
            reason = error
    text = str(reason).partition("\n")[0]
    raise UsageError(f"schema: {value!r:.80} has no JSON schema: {text}")
