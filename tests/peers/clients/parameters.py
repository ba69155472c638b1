"""Send every parameter in the types of OpenAI's and Anthropic's clients, with each alternative of
its type, and print the results: one JSON object per value.

python parameters.py http://127.0.0.1:8000

A result has the route, the field, the value, the kind of the client, whether the request streams,
and the status, code, param and message of the response, or the field of a validated answer.
"""

from __future__ import annotations

import asyncio
import collections.abc
import importlib
import json
import sys
import types
import typing
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anthropic
import openai
import routes_anthropic
import routes_openai
import typing_extensions
from routes import collect, wait

QUESTION = "What is the capital of France?"
MESSAGES = [{"role": "user", "content": QUESTION}]
MAX_DEPTH = 6
"""Levels of a value; deeper parts of recursive types are left out."""
MAX_VALUES = 150
"""Alternatives of one field."""
OBJECT: dict[str, Any] = {"type": "object", "properties": {}}


def is_typed_dict(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "__total__")


def hints(kind: Any) -> dict[str, Any]:
    return typing_extensions.get_type_hints(kind, include_extras=True)


def is_required(kind: Any, field: Any) -> bool:
    """Whether a dictionary needs a field. Its `__required_keys__` ignore deferred annotations."""
    origin = typing_extensions.get_origin(field)
    return origin is typing.Required or (kind.__total__ and origin is not typing.NotRequired)


def values(kind: Any, depth: int = 0) -> Iterator[Any]:
    """A value for every alternative of a type: literals, members of unions, optional fields."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    name = getattr(origin, "__name__", "") or getattr(kind, "__name__", "")
    if origin in (typing.Annotated, typing.Required, typing.NotRequired) or name in WRAPPERS:
        yield from values(inner[0], depth)
    elif origin is typing.Literal:
        yield from inner
    elif origin in (typing.Union, types.UnionType):
        for member in inner:
            if member is not type(None):
                yield from values(member, depth)
    elif is_typed_dict(kind):
        yield from dictionaries(kind, depth)
    elif name in SEQUENCES or (isinstance(origin, type) and issubclass(origin, list)):
        yield from ([item] for item in values(inner[0], depth + 1))
    elif kind in SIMPLE:
        yield SIMPLE[kind]
    elif origin in (dict, collections.abc.Mapping):
        yield {"a": next(values(inner[1], depth + 1), "b")}
    elif kind in (object, Any):
        yield {}


WRAPPERS = ("Required", "NotRequired", "Annotated", "ReadOnly")
SEQUENCES = ("Iterable", "List", "list", "Sequence", "SequenceNotStr")
SIMPLE: dict[Any, Any] = {str: "x", bool: True, int: 1, float: 0.5}


def dictionaries(kind: Any, depth: int) -> Iterator[dict[str, Any]]:
    """A dictionary of the required fields, and one more for each alternative of each field."""
    if depth >= MAX_DEPTH:
        return
    fields = hints(kind)
    base = {}
    for name in (name for name, field in fields.items() if is_required(kind, field)):
        first = next(values(fields[name], depth + 1), None)
        if first is None:
            return
        base[name] = first
    yield base
    for name, field in fields.items():
        for value in values(field, depth + 1):
            if base.get(name) != value:
                yield {**base, name: value}


def first_of(items: Iterator[Any]) -> list[Any]:
    """The different items, `MAX_VALUES` at most."""
    seen: dict[str, Any] = {}
    for item in items:
        seen.setdefault(json.dumps(item, sort_keys=True), item)
        if len(seen) == MAX_VALUES:
            break
    return [*seen.values()]


# Values that a route needs, in place of "x" or 1.
GIVEN: dict[str, Any] = {
    "input": QUESTION,
    "messages": MESSAGES,
    "model": "default",
    "prompt": "a",
    "max_tokens": 8,
    "max_completion_tokens": 8,
    "max_output_tokens": 8,
}
CHAT = {"model": "default", "messages": MESSAGES, "max_tokens": 8}
RESPONSE = {"model": "default", "input": QUESTION, "max_output_tokens": 8}

BESIDE: dict[tuple[str, str], dict[str, Any]] = {
    ("POST /v1/chat/completions", "tools"): {
        "tools": [{"type": "function", "function": {"name": "x", "parameters": OBJECT}}]
    },
    ("POST /v1/responses", "tools"): {
        "tools": [{"type": "function", "name": "x", "parameters": OBJECT, "strict": True}]
    },
    ("POST /v1/messages", "tools"): {"tools": [{"name": "x", "input_schema": OBJECT}]},
    ("POST /v1/chat/completions", "logprobs"): {"logprobs": True},
    ("POST /v1/responses", "logprobs"): {"include": ["message.output_text.logprobs"]},
}
NEEDS = {"tool_choice": "tools", "parallel_tool_calls": "tools", "top_logprobs": "logprobs"}
"""Fields that need another one, and what requests with them contain beside it."""

Call = Callable[[Any], Any]
ROUTES: list[tuple[str, str, str, dict[str, Any], Call, bool]] = [
    (
        *("POST /v1/chat/completions", "openai.types.chat.completion_create_params"),
        *("CompletionCreateParamsBase", CHAT, lambda c: c.chat.completions.create, True),
    ),
    (
        *("POST /v1/completions", "openai.types.completion_create_params"),
        *("CompletionCreateParamsBase", {"model": "default", "prompt": "a", "max_tokens": 4}),
        *(lambda c: c.completions.create, False),
    ),
    (
        *("POST /v1/responses", "openai.types.responses.response_create_params"),
        *("ResponseCreateParamsBase", RESPONSE, lambda c: c.responses.create, True),
    ),
    (
        *("POST /v1/responses/input_tokens", "openai.types.responses.input_token_count_params"),
        *("InputTokenCountParams", {"model": "default", "input": QUESTION}),
        *(lambda c: c.responses.input_tokens.count, False),
    ),
    (
        *("POST /v1/embeddings", "openai.types.embedding_create_params"),
        *("EmbeddingCreateParams", {"model": "default", "input": "a", "encoding_format": "float"}),
        *(lambda c: c.embeddings.create, False),
    ),
    (
        *("POST /v1/conversations", "openai.types.conversations.conversation_create_params"),
        *("ConversationCreateParams", {}, lambda c: c.conversations.create, False),
    ),
    (
        *("POST /v1/messages", "anthropic.types.message_create_params"),
        *("MessageCreateParamsBase", CHAT, lambda c: c.messages.create, True),
    ),
    (
        *("POST /v1/messages/count_tokens", "anthropic.types.message_count_tokens_params"),
        *("MessageCountTokensParams", {"model": "default", "messages": MESSAGES}),
        *(lambda c: c.messages.count_tokens, False),
    ),
]
"""Route, module and type of its parameters, a minimal request, the method, and if it streams."""


def error_of(error: Exception) -> dict[str, Any]:
    body = getattr(error, "body", None)
    detail = body.get("error", body) if isinstance(body, dict) else {}
    return {
        "status": getattr(error, "status_code", 0),
        "code": detail.get("code") or detail.get("type"),
        "param": detail.get("param"),
        "message": detail.get("message") or f"{type(error).__name__}: {error}",
    }


async def result_of(call: Callable[[], Awaitable[Any]], field: str) -> dict[str, Any]:
    try:
        made = await wait(call())
        if hasattr(made, "__aiter__") or hasattr(made, "__next__"):
            return {"status": 200, "events": len(await collect(made))}
        return {"status": 200, "echo": getattr(made, field, None)}
    except (openai.APIError, anthropic.APIError) as error:
        return error_of(error)
    except TypeError as error:  # a parameter that the method lacks
        return {"status": 0, "message": f"TypeError: {error}"}


def run_route(url: str) -> Iterator[Awaitable[dict[str, Any]]]:
    clients = {"openai": routes_openai, "anthropic": routes_anthropic}
    made = {name: module.make_clients(url) for name, module in clients.items()}
    for route, module, name, base, method, streams in ROUTES:
        kind = getattr(importlib.import_module(module), name)
        for client_kind, client in made[module.partition(".")[0]].items():
            create = method(client)
            for field, hint in hints(kind).items():
                beside = BESIDE.get((route, NEEDS.get(field, "")), {})
                given = [GIVEN[field]] if field in GIVEN and field in base else []
                for value in [*given, *first_of(values(hint))]:
                    for more in [{}, {"stream": True}] if streams else [{}]:
                        yield one(
                            {"route": route, "field": field, "value": value, "client": client_kind},
                            create,
                            {**base, **beside, field: value, **more},
                        )


async def one(
    result: dict[str, Any], create: Callable[..., Any], fields: dict[str, Any]
) -> dict[str, Any]:
    stream = {"stream": True} if "stream" in fields else {}
    return {**result, **stream, **await result_of(lambda: create(**fields), result["field"])}


async def main() -> None:
    for each in run_route(sys.argv[1]):
        print(json.dumps(await each, default=str), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
