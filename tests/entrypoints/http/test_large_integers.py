"""Integers beyond 64 bits, and names of parameters, in requests: never a fault of the server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import httpx
import pytest
from msgspec import inspect
from tiny.bert import make_bert
from tiny.flux import make_flux
from tiny.model import make_model
from tiny.server import RunningServer, serving

from ostro.core.plugins.manager import PluginManager
from ostro.core.routes import Route
from ostro.core.settings import Settings
from ostro.entrypoints.http.app import routes_of
from ostro.entrypoints.http.openapi import EXAMPLES, PARAMETER, WITH_QUERY

pytestmark = pytest.mark.process

INTEGERS = (str(10**30), str(-(10**30)), str(2**63), str(2**64), "1e400")
"""As JSON."""
HERE = "the integer"
"""Stands for the integer in a body."""
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "maximum": HERE}}}
OBJECTS: tuple[Any, ...] = ({"a": HERE}, {"a": [{"b": HERE}]}, SCHEMA)
"""Values of fields that are any object."""
SHORT = {"max_tokens", "max_completion_tokens", "max_output_tokens"}
"""Fields that keep answers short."""
MODELS = {
    "/v1/embeddings": "bert",
    "/api/embed": "bert",
    "/api/embeddings": "bert",
    "/pooling": "bert",
    "/v1/rerank": "ranker",
    "/rerank": "ranker",
    "/v2/rerank": "ranker",
    "/v1/score": "ranker",
    "/score": "ranker",
    "/v1/classify": "judge",
    "/classify": "judge",
    "/v1/images/generations": "flux",
}
"""The models of routes that the text model does not serve."""
MISSING = {
    "/v1/audio/speech",
    "/v1/batches",
    "/v1/chat/completions/{id}",
    "/v1/conversations/{id}",
    "/v1/conversations/{id}/items",
    "/v1/uploads/{id}/complete",
}
"""Routes whose model or document the server lacks."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("models")
    make_model(root / "text")
    make_bert(root / "bert")
    for name, labels in (("ranker", 1), ("judge", 3)):
        make_bert(root / name, "BertForSequenceClassification", num_labels=labels)
    make_flux(root / "flux")
    also = [str(root / name) for name in ("bert", "ranker", "judge", "flux")]
    settings = Settings(reference=str(root / "text"), dtype="float32", adapter_root=str(root))
    with serving(settings, also=also, store="memory", model_root=root) as found:
        yield found


def json_routes() -> list[Route]:
    """The routes with a body of JSON."""
    plugins = PluginManager()
    plugins.load()
    return [
        route
        for route in routes_of(plugins)
        if kind_of(route) is not None
        and not route.name.startswith(WITH_QUERY)
        and getattr(route.request, "media_type", "") != "multipart/form-data"
    ]


def kind_of(route: Route) -> Any:
    return route.request if route.body is None else route.body.kind or route.request


def values(info: Any) -> Iterator[Any]:
    """The values of a type that contain the integer, at each place that takes one."""
    match info:
        case inspect.IntType() | inspect.FloatType():
            yield HERE
        case inspect.AnyType() | inspect.RawType():
            yield HERE
            yield from OBJECTS
        case inspect.UnionType():
            for each in info.types:
                yield from values(each)
        case inspect.ListType() | inspect.CollectionType():
            yield from ([value] for value in values(info.item_type))
        case inspect.DictType():
            if isinstance(info.value_type, inspect.AnyType):
                yield from OBJECTS
            else:
                yield from ({"5": value} for value in values(info.value_type))
            yield {HERE: sample(info.value_type)}
        case inspect.StructType():
            yield from ({**whole(info), **field} for field in fields(info))


def fields(info: inspect.StructType) -> Iterator[dict[str, Any]]:
    """Each field of a type, with each of its `values`."""
    for field in info.fields:
        yield from ({field.encode_name: value} for value in values(field.type))


def whole(info: inspect.StructType) -> dict[str, Any]:
    """An object of a type, of its required fields."""
    tag = {info.tag_field: info.tag} if info.tag_field else {}
    return {**tag, **{f.encode_name: sample(f.type) for f in info.fields if f.required}}


def sample(info: Any) -> Any:
    """A small value of a type."""
    match info:
        case inspect.LiteralType():
            return info.values[0]
        case inspect.UnionType():
            return sample(info.types[0])
        case inspect.ListType():
            return [sample(info.item_type)]
        case inspect.StructType():
            return whole(info)
        case inspect.BoolType():
            return False
        case inspect.IntType() | inspect.FloatType():
            return 1
        case inspect.DictType() | inspect.AnyType() | inspect.RawType():
            return {}
    return "user"


def send(server: RunningServer, route: Route, body: Mapping[str, Any], integer: str) -> Any:
    method, _, path = route.name.partition(" ")
    text = json.dumps(body).replace(f'"{HERE}":', f'"{integer}":').replace(f'"{HERE}"', integer)
    given = {"content-type": "application/json"} | ({route.header: "1"} if route.header else {})
    url = server.url + PARAMETER.sub("text", path)
    return httpx.request(method, url, content=text, headers=given, timeout=240)


@pytest.mark.parametrize("route", json_routes(), ids=lambda route: route.name)
def test_no_integer_is_a_fault_of_the_server(server: RunningServer, route: Route) -> None:
    info = inspect.type_info(kind_of(route))
    assert isinstance(info, inspect.StructType)
    known, path = set(kind_of(route).__struct_encode_fields__), route.name.partition(" ")[2]
    base = dict(route.example or EXAMPLES[route.name])
    base |= dict.fromkeys(SHORT & known, 2)
    if "options" in known:
        base["options"] = {"num_predict": 2}
    if "model" in known and path in MODELS:
        base["model"] = MODELS[path]
    answer = send(server, route, base, "")
    assert answer.status_code == 200 or route.scope == "admin" or path in MISSING, answer.text
    faults = []
    for field, integer in product(fields(info), INTEGERS):
        answer = send(server, route, {**base, **field}, integer)
        if answer.status_code >= 500:
            faults.append((integer, field, answer.text))
    assert not faults


NAMES = ("self", "messages", "tools", "until", "add_generation_prompt", "kwargs", "options")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/apply-template", "/tokenize"])
def test_names_of_parameters_are_no_options_of_a_template(server: RunningServer, path: str) -> None:
    for name in NAMES:
        options = {"chat_template_kwargs": {name: 1}}
        answer = server.post(path, messages=[{"role": "user", "content": "hi"}], **options)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == "chat_template_kwargs"


def test_a_number_beyond_all_floats_is_named(server: RunningServer) -> None:
    for path in ("/v1/responses", "/v1/chat/completions"):
        body = {"input": "hi"} if path == "/v1/responses" else {"messages": "hi"}
        text = json.dumps({**body, "seed": HERE}).replace(f'"{HERE}"', "1e400")
        given = {"content-type": "application/json"}
        answer = httpx.post(server.url + path, content=text, headers=given, timeout=240)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "seed", answer.text


def test_the_budget_of_thinking_is_named(server: RunningServer) -> None:
    for budget in (2**31 + 1, 10**30, -1):
        answer = server.post("/v1/chat/completions", messages="hi", thinking_budget=budget)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == "thinking_budget"
