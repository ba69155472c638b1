"""The OpenAPI 3.1 document of the routes, generated from the types of their JSON, and its page."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any, get_type_hints

import msgspec
from starlette.requests import Request
from starlette.responses import Response

import ostro
from ostro.core.routes import Route
from ostro.core.uploaded_file import UploadedFile
from ostro.entrypoints.http.errors import respond
from ostro.entrypoints.http.handlers import WITH_QUERY
from ostro.entrypoints.operations.requests.errors import ErrorBody
from ostro.entrypoints.operations.requests.event_formats import OPENAI_EVENTS

JSON, SSE = "application/json", "text/event-stream"
REFERENCE = "#/components/schemas/{name}"
ERRORS: Mapping[str, str] = {
    "400": "A field is malformed, out of range or not supported; `param` names it.",
    "401": "The API key is missing or invalid.",
    "403": "The API key may not do this.",
    "404": "The model, the adapter or the document does not exist.",
    "408": "The body did not arrive in time.",
    "409": "The document, or the name of an adapter, is in use or has changed meanwhile.",
    "413": "The body is too large.",
    "415": "The content type is not the expected one.",
    "422": "The files of the model or adapter are malformed or do not fit.",
    "429": "A limit of the API key is reached; repeat the request after `retry-after` seconds.",
    "500": "An error of the server; its log says which.",
    "503": "The server is loading or busy; repeat the request after `retry-after` seconds.",
    "507": "The memory of the server, or what it may store, is exhausted.",
}
"""Error responses by their status."""
COMMON = (401, 403, 429, 500)
"""Statuses of errors that all routes have, except those of the scope "open"."""
WITH_BODY = (408, 413, 415)
"""Statuses of errors of routes with a body."""
EXAMPLES: Mapping[str, Any] = {
    "POST /v1/chat/completions": {
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_completion_tokens": 64,
    },
    "POST /v1/completions": {"prompt": "Once upon a time", "max_tokens": 32},
    "POST /v1/embeddings": {"input": ["a text", "another text"]},
    "POST /v1/images/generations": {"prompt": "a red bicycle", "size": "512x512"},
    "POST /v1/audio/speech": {"input": "Good morning.", "response_format": "wav"},
    "POST /v1/responses": {"input": "What is the capital of France?", "max_output_tokens": 64},
    "POST /v1/responses/input_tokens": {"input": "What is the capital of France?"},
    "POST /v1/chat/completions/{id}": {"metadata": {"topic": "capitals"}},
    "POST /v1/conversations": {
        "items": [{"type": "message", "role": "user", "content": "What is the capital of France?"}]
    },
    "POST /v1/conversations/{id}": {"metadata": {"topic": "capitals"}},
    "POST /v1/conversations/{id}/items": {
        "items": [{"type": "message", "role": "user", "content": "And of Italy?"}]
    },
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
    "POST /v1/models/load": {"model": "chat"},
    "POST /v1/models/unload": {"model": "chat"},
    "POST /v1/models/reload": {"model": "chat"},
    "POST /v1/models/{id:path}/requantize": {"quant": "q4k"},
    "POST /re_isq": {"ggml_type": "q4k"},
}
"""Examples of request bodies of built-in routes, which `Route.example` replaces."""
HIDDEN = ("WEBSOCKET ", "FILES ")
"""Starts of the names of routes that OpenAPI does not describe."""
OUTER = ("default", "description", "x-ostro-extension")
"""Keywords that describe a property with all its alternatives."""
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
    types = [*dict.fromkeys([ErrorBody, *(x for route in shown for x in types_of(route))])]
    schemas, components = msgspec.json.schema_components(
        types, schema_hook=file_schema, ref_template=REFERENCE
    )
    by_type = dict(zip(types, schemas, strict=True))
    for schema in components.values():
        # Before Python 3.13, docstrings keep the indentation of the source.
        if text := schema.get("description"):
            schema["description"] = inspect.cleandoc(text)
    for route in shown:
        complete(route, components)
    paths: dict[str, dict[str, Any]] = {}
    for route in sorted(shown, key=lambda route: bool(route.header)):
        method, _, path = route.name.partition(" ")
        methods = paths.setdefault(PARAMETER.sub(r"{\1}", path), {})
        found = operation(route, by_type, components)
        if route.header and method.lower() in methods:
            found = alternatives(methods[method.lower()], found)
        methods[method.lower()] = found
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


def file_schema(kind: type[Any]) -> dict[str, Any]:
    """Return the schema of a file in a form. Raises NotImplementedError for another type."""
    if kind is UploadedFile:
        return {"contentMediaType": "application/octet-stream"}
    raise NotImplementedError


def types_of(route: Route) -> Iterable[Any]:
    """Yield the types of a route's JSON."""
    kinds = route.request, route.query, route.response, route.events, error_type(route)
    for kind in kinds:
        if kind is not None and not isinstance(kind, list | tuple):
            yield kind


def error_type(route: Route) -> Any:
    """Return the type of a route's errors: what its `errors` returns, OpenAI's without."""
    return ErrorBody if route.errors is None else get_type_hints(route.errors).get("return")


def alternatives(usual: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the operation of two routes of one path, of which `other` requires a header.

    The parameters that only `other` reads may have any value, since they need the header.
    """
    known = {each["name"] for each in usual.get("parameters", ())}
    added = [each for each in other["parameters"] if each["name"] not in known]
    added = [each | ({"schema": {}} if each["in"] == "query" else {}) for each in added]
    both = dict(other["responses"])
    for status, response in usual["responses"].items():
        if status in both:
            schemas = [schema_of(each) for each in (response, both[status])]
            both[status] = {**both[status], "content": content(JSON, {"anyOf": schemas})}
        else:
            both[status] = response
    return {**usual, "parameters": [*usual.get("parameters", ()), *added], "responses": both}


def schema_of(response: Mapping[str, Any]) -> Any:
    """Return the schema of the JSON of a response. References are those of OpenAI's errors."""
    if "$ref" in response:
        return {"$ref": REFERENCE.format(name=ErrorBody.__name__)}
    return response["content"][JSON]["schema"]


def complete(route: Route, components: Mapping[str, Any]) -> None:
    """Complete the schema of a route's request: mark extensions and fields without effect.

    Fields that the route rejects are left out. The bytes in a form are a file. In JSON, null stands
    for an absent field.
    """
    kind = route.request
    if kind is None:
        return
    schema = components[schema_name(kind)]
    properties = schema["properties"]
    for name in properties.keys() & getattr(kind, "extensions", ()):
        properties[name]["x-ostro-extension"] = True
    for name in getattr(kind, "unsupported", ()):
        properties.pop(name, None)
    for name, reason in getattr(kind, "accepted", {}).items():
        properties[name]["description"] = f"No effect: {reason}."
    for name, reason in getattr(kind, "echoed", {}).items():
        properties[name]["description"] = f"Echoed in the response: {reason}."
    for name, each in properties.items():
        if each.get("contentEncoding") == "base64":
            properties[name] = {"contentMediaType": "application/octet-stream"}
    if getattr(kind, "media_type", JSON) == JSON and not route.name.startswith(WITH_QUERY):
        for name in properties.keys() - {*schema.get("required", ())}:
            properties[name] = nullable(properties[name])
    schema["additionalProperties"] = False


def nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that also allows null."""
    alternatives = schema.get("anyOf", [schema])
    if schema.get("default", ...) is None or {"type": "null"} in alternatives:
        return schema
    outer = {name: schema[name] for name in OUTER if name in schema}
    inner = {name: value for name, value in schema.items() if name not in OUTER}
    return {**outer, "anyOf": [*inner.get("anyOf", [inner]), {"type": "null"}]}


def operation(
    route: Route, schemas: Mapping[Any, Any], components: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the operation object of a route."""
    method, _, path = route.name.partition(" ")
    text = inspect.getdoc(route.handler or route.endpoint) or ""
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
    if route.query is not None:
        parameters += query_parameters(components[schema_name(route.query)])
    if route.header:
        parameters.append({"name": route.header, "in": "header", "schema": {"type": "string"}})
    if parameters:
        found["parameters"] = parameters
    return {**found, "responses": responses(route, schemas) | errors(route, schemas)}


def errors(route: Route, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the error responses of a route, in the form of its API family."""
    common = () if route.scope == "open" else COMMON
    has_body = route.request is not None and not route.name.startswith(WITH_QUERY)
    known = {*common, *route.error_statuses, *(WITH_BODY if has_body else ())}
    listed = {status: text for status, text in ERRORS.items() if int(status) in known}
    if route.errors is None:
        return {status: {"$ref": f"#/components/responses/{status}"} for status in listed}
    return {
        str(route.statuses.get(int(status), status)): {
            "description": text,
            "content": content(JSON, schemas.get(error_type(route), {})),
        }
        for status, text in listed.items()
    }


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
    example = route.example or EXAMPLES.get(route.name)
    if example is not None:
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
        answer["description"] = "The response, or the events of a stream."
        media = (route.event_format or OPENAI_EVENTS).media_type.partition(";")[0]
        schema = schemas[route.events]
        answer["content"] |= content(media, event_schema(schema) if media == SSE else schema)
    return {"200": answer}


def event_schema(schema: Any) -> dict[str, Any]:
    """Return the schema of a server-sent event whose data are JSON, or [DONE] at the end."""
    data = {"type": "string", "contentMediaType": JSON, "contentSchema": schema}
    names = {name: {"type": "string"} for name in ("event", "id", "retry")}
    return {"type": "object", "properties": {"data": data, **names}}


def content(media: str, schema: Any) -> dict[str, Any]:
    return {media: {"schema": schema}}


async def document(request: Request) -> Response:
    """Return this document."""
    found = openapi(request.app.state.routes)
    if root := request.app.state.root_path:
        found["servers"] = [{"url": root}]
    return respond(200, found)


async def page(request: Request) -> Response:
    """Show this document as a web page."""
    html = files("ostro.entrypoints.http").joinpath("docs.html").read_bytes()
    return Response(html, media_type="text/html; charset=utf-8")


ROUTES: tuple[Route, ...] = (
    Route(
        name="GET /openapi.json",
        endpoint=document,
        scope="open",
        response=["application/json"],
        error_statuses=(),
    ),
    Route(
        name="GET /docs",
        endpoint=page,
        scope="open",
        response=["text/html"],
        error_statuses=(),
    ),
)
