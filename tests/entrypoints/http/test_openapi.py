"""The OpenAPI document: it is up to date, complete, and describes what the server answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostro.core.plugins.manager import PluginManager
from ostro.entrypoints.cli import main
from ostro.entrypoints.http.app import describe

COMMITTED = Path(__file__).resolve().parents[3] / "docs" / "openapi.json"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    plugins = PluginManager()
    plugins.load()
    return describe(plugins)


def references(node: Any) -> set[str]:
    """The names in all `$ref` of a document."""
    if isinstance(node, list):
        return {name for item in node for name in references(item)}
    if not isinstance(node, dict):
        return set()
    own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
    return own.union(*(references(value) for value in node.values()))


def test_the_committed_document_is_up_to_date(document: dict[str, Any]) -> None:
    hint = "run: ostro serve --print-openapi > docs/openapi.json"
    assert json.loads(COMMITTED.read_text()) == json.loads(json.dumps(document)), hint


def test_the_command_prints_the_document_without_a_model(
    document: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--print-openapi"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(document))


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    found = references(document)
    assert "#/components/schemas/ChatCompletionChunk" in found
    for name in found:
        node = document
        for key in name.removeprefix("#/").split("/"):
            node = node[key]


def test_extensions_and_fields_without_effect_are_marked(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    chat = schemas["ChatBody"]
    assert chat["properties"]["min_p"]["x-ostro-extension"]
    assert "x-ostro-extension" not in chat["properties"]["top_p"]
    assert "No effect" in chat["properties"]["user"]["description"]
    assert "store" not in schemas["CompletionBody"]["properties"]
    assert chat["additionalProperties"] is False and chat["required"] == ["messages"]


def test_every_request_has_an_example_of_its_fields(document: dict[str, Any]) -> None:
    bodies = [
        operation["requestBody"]["content"]["application/json"]
        for methods in document["paths"].values()
        for operation in methods.values()
        if "application/json" in operation.get("requestBody", {}).get("content", {})
    ]
    assert len(bodies) > 8
    for body in bodies:
        schema = document["components"]["schemas"][body["schema"]["$ref"].rpartition("/")[2]]
        assert body["example"].keys() <= schema["properties"].keys()
        assert {*schema.get("required", ())} <= body["example"].keys()


def test_a_server_shows_its_document_without_a_key(start: Any) -> None:
    server = start(keys=["secret"])
    found = server.http.get("/openapi.json").json()
    assert found["openapi"] == "3.1.0" and "/v1/chat/completions" in found["paths"]
    assert found["paths"]["/health"]["get"]["security"] == []
    assert found["paths"]["/metrics"]["get"]["x-ostro-scope"] == "metrics"
    page = server.http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert (
        "openapi.json" in page.text and "http://" not in page.text and "https://" not in page.text
    )


def test_responses_have_the_documented_fields(server: Any, document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for response, name in (
        (server.chat("hi", logprobs=True, top_logprobs=1), "ChatCompletion"),
        (server.complete("hi", logprobs=1, prompt_logprobs=1), "TextCompletion"),
        (server.http.get("/v1/models"), "ModelList"),
        (server.http.get("/ready"), "Readiness"),
        (server.chat("hi", temperature=-1), "ErrorBody"),
    ):
        schema, content = schemas[name], response.json()
        assert content.keys() <= schema["properties"].keys(), name
        assert {*schema.get("required", ())} <= content.keys(), name


def test_optional_fields_of_json_requests_allow_null(document: dict[str, Any]) -> None:
    """As the server does: null stands for an absent field."""
    fields = document["components"]["schemas"]["RerankBody"]["properties"]
    assert fields["return_documents"] == {
        "default": True,
        "anyOf": [{"type": "boolean"}, {"type": "null"}],
    }
    assert {"type": "null"} not in fields["query"].get("anyOf", [])
    assert all(
        each.get("default", ...) is not None or {"type": "null"} in each["anyOf"]
        for each in fields.values()
    )


def test_events_are_described_as_json_in_their_data(document: dict[str, Any]) -> None:
    answers = document["paths"]["/v1/completions"]["post"]["responses"]["200"]["content"]
    data = answers["text/event-stream"]["schema"]["properties"]["data"]
    assert data["contentSchema"] == {"$ref": "#/components/schemas/TextCompletionChunk"}
    assert "schema" in answers["application/json"]


def test_other_methods_of_a_path_are_listed(server: Any) -> None:
    response = server.http.request("OPTIONS", "/v1/files/file-1")
    assert response.status_code == 405
    assert response.headers["allow"] == "DELETE, GET, HEAD"
    assert "use DELETE, GET, HEAD" in response.json()["error"]["message"]
