"""Structured output: the forms of all APIs as the parameter of the logits processor "grammar"."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ostro.errors import RequestError, Unsupported, UsageError
from ostro.pipelines import ResponseFormat, Sampling, TextRequest

GRAMMAR = "grammar"
"""The name of the logits processor."""
BUDGET = "reasoning_budget"
"""The name of the logits processor that ends reasoning."""
ARGUMENTS: Mapping[str, str] = {
    "schema": "json_schema",
    "regex": "regex",
    "choice": "choice",
    "lark": "lark",
    "gbnf": "gbnf",
    "yacc": "yacc",
    "structural_tag": "structural_tag",
}
"""Arguments of Python's `generate`, and the notations of the processor."""
GUIDED = {"guided_json": "json_schema", "guided_regex": "regex", "guided_choice": "choice"}
"""vLLM's older fields."""
JSON, TAGS = ("json_object", "json_schema"), ("structural_tag",)
FORMAT_FIELDS: Mapping[str, tuple[str, ...]] = {
    "json_schema": JSON,
    "schema": JSON,
    "structures": TAGS,
    "triggers": TAGS,
    "format": TAGS,
}
"""Fields of `response_format`, and the types that have them."""

Form = tuple[str, dict[str, Any]]
"""A request field and the parameter that it states."""


def processors_of(request: TextRequest) -> dict[str, Any]:
    """The parameters of logits processors of a request, a grammar among them.

    Raises RequestError for a malformed field, and for two fields that constrain the output.
    """
    if request.processors is not None and request.logits_processors is not None:
        raise RequestError(
            "processors is the older name of logits_processors; use logits_processors alone",
            param="processors",
        )
    found = dict(request.logits_processors or request.processors or {})
    forms = list(forms_of(request))
    if GRAMMAR in found:
        forms.insert(0, ("logits_processors", {}))
    if len(forms) > 1:
        names = " and ".join(dict.fromkeys(name for name, _ in forms))
        raise RequestError(f"{names} exclude each other; use one of them", param=forms[1][0])
    for field, parameter in forms:
        if parameter:
            found[GRAMMAR] = {**parameter, "field": field}
    return found


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


def forms_of(request: TextRequest) -> Iterator[Form]:
    """The fields of a request that constrain the output."""
    if (form := request.response_format) is not None:
        check_format(form)
        if form.type != "text":
            yield "response_format", response_format(form)
    if request.json_schema is not None:
        yield "json_schema", {"json_schema": request.json_schema}
    if isinstance(request.grammar, str):
        yield "grammar", grammar(request.grammar)
    elif request.grammar is not None:
        yield "grammar", tagged(request.grammar.type, request.grammar.value)
    for name, kind in GUIDED.items():
        if (value := getattr(request, name)) is not None:
            yield name, {kind: parsed(value, name) if kind == "json_schema" else value}
    if request.guided_grammar is not None:
        yield "guided_grammar", grammar(request.guided_grammar)
    if request.structured_outputs is not None:
        stated = {
            name: value
            for name in request.structured_outputs.__struct_fields__
            if (value := getattr(request.structured_outputs, name)) not in (None, False)
        }
        if len(stated) != 1:
            names = ", ".join(request.structured_outputs.__struct_fields__)
            raise RequestError(
                f"structured_outputs: expected one of {names}; got {len(stated)}",
                param="structured_outputs",
            )
        for name, value in stated.items():
            yield "structured_outputs", structured(name, value)


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


def response_format(form: ResponseFormat) -> dict[str, Any]:
    """The parameter of OpenAI's `response_format`, with `schema` as llama.cpp accepts it."""
    if form.type == "structural_tag":
        tag = {"structures": form.structures, "triggers": form.triggers, "format": form.format}
        return {"structural_tag": {k: v for k, v in tag.items() if v is not None}}
    named = form.json_schema
    schema = form.schema if named is None else named.schema
    if schema is not None:
        return {"json_schema": schema}
    if form.type == "json_object" and named is None:
        return {"json_object": True}
    raise RequestError(
        "response_format.json_schema.schema is missing; use json_object for any JSON object",
        param="response_format",
    )


def structured(name: str, value: Any) -> dict[str, Any]:
    """The parameter of an entry of vLLM's `structured_outputs`."""
    if name == "grammar":
        return grammar(value)
    if name == "json_object":
        return {"json_object": True}
    if name in ("json", "structural_tag"):
        kind = "json_schema" if name == "json" else name
        return {kind: parsed(value, f"structured_outputs.{name}")}
    return {name: value}


def tagged(kind: str, value: Any) -> dict[str, Any]:
    """The parameter of mistral.rs's `grammar`, an object with `type` and `value`."""
    if kind == "llguidance":
        raise Unsupported(
            "grammar: the type 'llguidance' is not supported; use lark or json_schema",
            param="grammar",
        )
    return {kind: parsed(value, "grammar") if kind == "json_schema" else value}


def grammar(text: str) -> dict[str, Any]:
    """The parameter of a grammar in GBNF, which defines rules by `::=`, or else in Lark."""
    return {"gbnf" if "::=" in text and not text.startswith("%llguidance") else "lark": text}


def parsed(value: Any, field: str) -> Any:
    """A JSON value, parsed if it is a text."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        name = field.partition(".")[0]
        raise RequestError(f"{field} is not valid JSON", param=name) from None


def take_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `Sampling` from arguments of Python, a grammar among `processors`.

    Raises UsageError for two grammars and for a type without a JSON schema.
    """
    fields = {name: value for name, value in values.items() if name not in ARGUMENTS}
    given = {name: values[name] for name in ARGUMENTS if values.get(name) is not None}
    held = fields.get("processors") or {}
    if len(given) + (GRAMMAR in held) > 1:
        raise UsageError(f"{', '.join(given)}: one grammar at a time constrains an answer")
    for name, value in given.items():
        parameter = {ARGUMENTS[name]: schema_of(value) if name == "schema" else value}
        fields["processors"] = {**held, GRAMMAR: {**parameter, "field": name}}
    return fields


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
