"""docs/http-api.md is up to date, and covers the parameters of OpenAI's SDK."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import import_module
from typing import Any, get_args, get_type_hints

import pytest

from ostro.core.errors import Unsupported
from ostro.core.pipeline import parse_request
from ostro.core.routes import Route
from ostro.entrypoints.http.http_api import http_api

from .http_api import PAGE, all_routes, find_test

SDK = {
    "POST /v1/chat/completions": "openai.types.chat.completion_create_params",
    "GET /v1/chat/completions": "openai.types.chat.completion_list_params",
    "POST /v1/chat/completions/{id}": "openai.types.chat.completion_update_params",
    "GET /v1/chat/completions/{id}/messages": "openai.types.chat.completions.message_list_params",
    "POST /v1/completions": "openai.types.completion_create_params",
    "POST /v1/responses": "openai.types.responses.response_create_params",
    "GET /v1/responses/{id}": "openai.types.responses.response_retrieve_params",
    "GET /v1/responses/{id}/input_items": "openai.types.responses.input_item_list_params",
    "POST /v1/responses/input_tokens": "openai.types.responses.input_token_count_params",
    "POST /v1/conversations": "openai.types.conversations.conversation_create_params",
    "POST /v1/conversations/{id}": "openai.types.conversations.conversation_update_params",
    "POST /v1/conversations/{id}/items": "openai.types.conversations.item_create_params",
    "GET /v1/conversations/{id}/items": "openai.types.conversations.item_list_params",
    "GET /v1/conversations/{id}/items/{item}": "openai.types.conversations.item_retrieve_params",
    "POST /v1/embeddings": "openai.types.embedding_create_params",
    "POST /v1/images/generations": "openai.types.image_generate_params",
    "POST /v1/images/edits": "openai.types.image_edit_params",
    "POST /v1/images/variations": "openai.types.image_create_variation_params",
    "POST /v1/audio/speech": "openai.types.audio.speech_create_params",
    "POST /v1/audio/transcriptions": "openai.types.audio.transcription_create_params",
    "POST /v1/audio/translations": "openai.types.audio.translation_create_params",
    "POST /v1/files": "openai.types.file_create_params",
    "GET /v1/files": "openai.types.file_list_params",
    "POST /v1/uploads": "openai.types.upload_create_params",
    "POST /v1/uploads/{id}/parts": "openai.types.uploads.part_create_params",
    "POST /v1/uploads/{id}/complete": "openai.types.upload_complete_params",
    "POST /v1/batches": "openai.types.batch_create_params",
    "GET /v1/batches": "openai.types.batch_list_params",
    "POST /v1/messages": "anthropic.types.message_create_params",
    "POST /v1/messages/count_tokens": "anthropic.types.message_count_tokens_params",
    "POST /v1/messages/batches": "anthropic.types.messages.batch_create_params",
    "GET /v1/messages/batches": "anthropic.types.messages.batch_list_params",
    "GET /v1/models": "anthropic.types.model_list_params",
    "POST /api/chat": "ollama._types:ChatRequest",
    "POST /api/generate": "ollama._types:GenerateRequest",
    "POST /api/embed": "ollama._types:EmbedRequest",
    "POST /api/embeddings": "ollama._types:EmbeddingsRequest",
    "POST /api/show": "ollama._types:ShowRequest",
}
"""Parameters in the vendors' clients for Python: a type, or a module with one of the same name."""
BESIDE = {"file"}
"""Parameters that are the file of a form, not fields of a request type."""
HEADERS = {"user_profile_id", "workspace_id"}
"""Parameters of Anthropic's client that it sends as headers, with some requests as fields."""
ELSEWHERE = {
    ("POST /v1/conversations/{id}/items", "include"),
    ("GET /v1/conversations/{id}/items/{item}", "conversation_id"),
}
"""Parameters in the query of a route with a body, and in the path."""


@pytest.fixture(scope="module")
def routes() -> dict[str, Route]:
    return {route.name: route for route in all_routes()}


def test_the_page_is_up_to_date(routes: dict[str, Route]) -> None:
    hint = "run: python tests/entrypoints/http/http_api.py"
    assert PAGE.read_text() == http_api(list(routes.values()), find_test), hint


def test_every_field_is_sent_by_a_test(routes: dict[str, Route]) -> None:
    missing = [
        (route.name, field)
        for route in all_routes()
        for field in getattr(route.request, "__struct_fields__", ())
        if not find_test(route, field)
    ]
    assert not missing


def test_rejected_fields(routes: dict[str, Route]) -> None:
    """The error names the field, also when required fields are missing."""
    rejected = [
        (route.request, name)
        for route in routes.values()
        for name in getattr(route.request, "unsupported", ())
    ]
    assert len(rejected) > 20
    for kind, name in rejected:
        with pytest.raises(Unsupported, match="is not supported") as raised:
            parse_request({name: "x"}, kind)
        assert raised.value.param == name


def fields_of(kind: Any) -> Iterable[str]:
    """The fields of a typed dictionary or a pydantic model."""
    return getattr(kind, "model_fields", None) or get_type_hints(kind)


@pytest.mark.parametrize("name", SDK)
def test_every_parameter_of_the_sdk_is_known(routes: dict[str, Route], name: str) -> None:
    kind: Any = routes[name].request
    module, _, type_name = SDK[name].partition(":")
    type_name = type_name or module.rpartition(".")[2].title().replace("_", "")
    found = getattr(import_module(module), type_name)
    types = get_args(found) or (found,)
    given = {field for each in types for field in fields_of(each)}
    known = {*kind.__struct_fields__, *getattr(kind, "unsupported", ())}
    assert given
    assert not {(name, field) for field in given - known - BESIDE - HEADERS} - ELSEWHERE


def test_fields_without_effect_are_typed(routes: dict[str, Route]) -> None:
    for route in routes.values():
        kind: Any = route.request
        named = {*getattr(kind, "accepted", ()), *getattr(kind, "echoed", ())}
        assert named <= {*getattr(kind, "__struct_fields__", ())}, route.name


def test_the_table_of_clients_has_all_routes() -> None:
    """docs/clients.md, which a test with the clients' environments compares with their results."""
    rows = (PAGE.parent / "clients.md").read_text().splitlines()
    cells = [row.split(" | ")[0].removeprefix("| ") for row in rows if row.startswith("| ")]
    paths = {path.split(" ")[-1] for cell in cells for path in cell.split(", ")}
    documented = json.loads((PAGE.parent / "openapi.json").read_text())["paths"]
    assert sorted(documented.keys() - paths) == []
