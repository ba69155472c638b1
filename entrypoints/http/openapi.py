"""The OpenAPI 3.1 document of the routes, generated from the types of their JSON, and its page."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

import ostro
from ostro.core.records import Route
from ostro.entrypoints.http.errors import ErrorBody, respond
from ostro.entrypoints.operations.operations import Operations

JSON = "application/json"
REFERENCE = "#/components/schemas/{name}"
ERRORS: Mapping[str, str] = {
    "400": "A field is malformed, out of range or not supported; `param` names it.",
    "401": "The API key is missing or invalid.",
    "403": "The API key may not do this.",
    "404": "The model or the adapter does not exist.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The content type is not the expected one.",
    "429": "A limit of the API key is reached; repeat the request after `retry-after` seconds.",
    "500": "An error of the server; its log says which.",
    "503": "The server is loading or busy; repeat the request after `retry-after` seconds.",
}
"""Error responses of routes that run a model."""
WITHOUT_BODY = ("408", "413", "415")
"""Errors of routes with a body only."""
EXAMPLES: Mapping[str, Any] = {
    "POST /v1/chat/completions": {
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_completion_tokens": 64,
    },
    "POST /v1/completions": {"prompt": "Once upon a time", "max_tokens": 32},
    "POST /v1/embeddings": {"input": ["a text", "another text"]},
    "POST /v1/rerank": {"query": "capitals", "documents": ["Paris", "a pear"], "top_n": 1},
    "POST /v1/classify": {"input": "a wonderful film"},
    "POST /v1/images/generations": {"prompt": "a red bicycle", "size": "512x512"},
    "POST /v1/audio/speech": {"input": "Good morning.", "response_format": "wav"},
    "POST /v1/batches": {
        "input_file_id": "file-1",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    },
    "POST /v1/uploads": {
        "filename": "requests.jsonl",
        "purpose": "batch",
        "bytes": 1000,
        "mime_type": "application/jsonl",
    },
    "POST /v1/uploads/{id}/complete": {"part_ids": ["part-1"]},
    "POST /v1/load_lora_adapter": {"lora_name": "sql", "lora_path": "sql"},
    "POST /v1/unload_lora_adapter": {"lora_name": "sql"},
}
"""Examples of request bodies, by route."""
HIDDEN = ("WEBSOCKET ", "FILES ")
"""Starts of the names of routes that OpenAPI does not describe."""
WITH_QUERY = ("GET", "DELETE")
"""Methods whose request is the query string."""
PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")
"""A parameter in the path of a Starlette route: its name, and its converter."""
SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "api-key": {"type": "apiKey", "in": "header", "name": "api-key"},
}


def openapi(routes: Sequence[Route]) -> dict[str, Any]:
    """Return the OpenAPI document of routes. WebSockets and static files are not part of it."""
    shown = [route for route in routes if not route.name.startswith(HIDDEN)]
    types = [*dict.fromkeys(x for route in shown for x in types_of(route)), ErrorBody]
    schemas, components = msgspec.json.schema_components(types, ref_template=REFERENCE)
    by_type = dict(zip(types, schemas, strict=True))
    for schema in components.values():
        # Before Python 3.13, docstrings keep the indentation of the source.
        if text := schema.get("description"):
            schema["description"] = inspect.cleandoc(text)
    for route in shown:
        complete(route.request, components)
    paths: dict[str, dict[str, Any]] = {}
    for route in shown:
        method, _, path = route.name.partition(" ")
        paths.setdefault(PARAMETER.sub(r"{\1}", path), {})[method.lower()] = operation(
            route, by_type, components
        )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "ostro",
            "version": ostro.__version__,
            "description": "Properties with `x-ostro-extension` extend the API that the route is "
            "named after. `x-ostro-scope` is the permission that a route requires of an API key.",
        },
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": SECURITY,
            "responses": {
                status: {"description": text, "content": content(JSON, by_type[ErrorBody])}
                for status, text in ERRORS.items()
            },
        },
    }


def types_of(route: Route) -> Iterable[Any]:
    """Yield the types of a route's JSON."""
    for kind in (route.request, route.response, route.events):
        if kind is not None and not isinstance(kind, list | tuple):
            yield kind


def complete(kind: Any, components: Mapping[str, Any]) -> None:
    """Complete the schema of a request: mark extensions, add the fields without effect.

    Other fields are rejected. The bytes in a form are a file.
    """
    if kind is None:
        return
    schema = components[schema_name(kind)]
    properties = schema["properties"]
    for name in properties.keys() & getattr(kind, "extensions", ()):
        properties[name]["x-ostro-extension"] = True
    for name in sorted(getattr(kind, "ignored", ())):
        properties[name] = {"description": "Accepted without effect."}
    for name, each in properties.items():
        if each.get("contentEncoding") == "base64":
            properties[name] = {"type": "string", "contentMediaType": "application/octet-stream"}
    schema["additionalProperties"] = False


def operation(
    route: Route, schemas: Mapping[Any, Any], components: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the operation object of a route."""
    method, _, path = route.name.partition(" ")
    text = inspect.getdoc(route.endpoint) or ""
    found: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", route.name.lower()).strip("_"),
        "summary": text.partition("\n")[0].rstrip("."),
        "x-ostro-scope": route.scope,
        "security": [] if route.scope == "open" else [{name: []} for name in SECURITY],
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in PARAMETER.findall(path)
    ]
    if route.request is not None and method in WITH_QUERY:
        parameters += query_parameters(components[schema_name(route.request)])
    elif route.request is not None:
        found["requestBody"] = request_body(route, schemas[route.request])
    if parameters:
        found["parameters"] = parameters
    answers = responses(route, schemas)
    if route.scope != "open":
        left_out = () if route.request is not None else WITHOUT_BODY
        references = {
            status: {"$ref": f"#/components/responses/{status}"}
            for status in ERRORS
            if status not in left_out
        }
        answers |= references
    return {**found, "responses": answers}


def schema_name(kind: Any) -> str:
    """The name of a type in the components."""
    return str(kind.__name__)


def query_parameters(schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the parameters of the query string that a request type describes."""
    required = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": each}
        for name, each in schema["properties"].items()
    ]


def request_body(route: Route, schema: Any) -> dict[str, Any]:
    """Return the request body object: JSON or a form."""
    body = content(getattr(route.request, "media_type", JSON), schema)
    if (example := EXAMPLES.get(route.name)) is not None:
        body[JSON]["example"] = example
    return {"required": True, "content": body}


def responses(route: Route, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the successful response of a route."""
    answer: dict[str, Any] = {"description": "The response."}
    if isinstance(route.response, list | tuple):
        answer["content"] = {media: {} for media in route.response}
    elif route.response is not None:
        answer["content"] = content(JSON, schemas[route.response])
    if route.events is not None:
        answer["description"] = "The response; with `stream` server-sent events."
        answer["content"] |= content("text/event-stream", schemas[route.events])
    return {"200": answer}


def content(media: str, schema: Any) -> dict[str, Any]:
    return {media: {"schema": schema}}


async def document(request: Request) -> Response:
    """Return this document."""
    return respond(200, openapi(request.app.state.routes))


async def page(request: Request) -> Response:
    """Show this document as a web page."""
    html = files("ostro.entrypoints.http").joinpath("docs.html").read_bytes()
    return Response(html, media_type="text/html; charset=utf-8")


def routes(operations: Operations) -> list[Route]:
    """Return the routes."""
    return [
        Route(
            name="GET /openapi.json", endpoint=document, scope="open", response=["application/json"]
        ),
        Route(name="GET /docs", endpoint=page, scope="open", response=["text/html"]),
    ]
