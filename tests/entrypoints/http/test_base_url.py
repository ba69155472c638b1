"""Base URLs without /v1, paths with a slash at their end, and names with the tag "latest"."""

from __future__ import annotations

import logging
from typing import Any

import httpx
import openai
import pytest
from echo.server import Running, Start, chat_message, wait_until

from ostro import Route, hookimpl
from ostro.http import Content

HI = [chat_message("hi")]


@pytest.mark.parametrize("prefix", ["", "/v1"])
@pytest.mark.parametrize("suffix", ["", "/"])
def test_base_urls(server: Running, prefix: str, suffix: str) -> None:
    def post(path: str, **body: Any) -> Any:
        answer = server.post(f"{prefix}{path}{suffix}", model="echo", **body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    assert post("/chat/completions", messages=HI)["object"] == "chat.completion"
    assert post("/completions", prompt="hi")["choices"][0]["text"] == "hi"
    assert post("/responses", input="hi", store=False)["object"] == "response"
    assert post("/messages", messages=HI, max_tokens=4)["type"] == "message"
    models = server.http.get(f"{prefix}/models{suffix}")
    assert models.status_code == 200 and models.json()["object"] == "list"
    assert server.http.get(f"{prefix}/models/echo").json()["id"] == "echo"
    embeddings = server.post(f"{prefix}/embeddings{suffix}", input="a")
    assert "echo supports text, not embed" in embeddings.json()["error"]["message"]


def test_a_client_with_the_plain_url(server: Running) -> None:
    with openai.OpenAI(base_url=server.url, api_key="none") as client:
        assert client.completions.create(model="echo:latest", prompt="hi").choices[0].text == "hi"
        assert [model.id for model in client.models.list()] == ["echo"]


@pytest.mark.parametrize("path", ["/chat", "/v2/chat/completions", "/api/models", "/v1/v1/models"])
def test_other_paths_are_unknown(server: Running, path: str) -> None:
    answer = server.http.get(path)
    assert answer.status_code == 404 and path in answer.json()["error"]["message"]


def test_wrong_methods_are_those_of_the_route(server: Running) -> None:
    answer = server.http.get("/completions")
    assert answer.status_code == 405 and answer.headers["allow"] == "POST"


class Own:
    """A plugin with paths that others could stand for."""

    @hookimpl
    def ostro_routes(self) -> Any:
        for path in ("/completions", "/own", "/own/"):
            yield Route(name=f"POST {path}", handler=self.handler_of(path))

    def handler_of(self, path: str) -> Any:
        async def handler(operations: Any, caller: Any, request: None) -> Content:
            """Name the path."""
            return Content(data=path.encode(), media_type="text/plain")

        return handler


def test_routes_of_plugins_come_first(start: Start) -> None:
    server = start(plugin=Own())
    for path in ("/completions", "/own", "/own/"):
        assert server.post(path).text == path
    assert server.post("/v1/completions", prompt="hi").status_code == 200


def test_keys_the_log_and_metrics_have_the_real_route(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    server = start(keys=["secret"], access_log=True)
    key = {"authorization": "Bearer secret"}
    with caplog.at_level(logging.INFO):
        for headers, status in (({}, 401), (key, 200)):
            body = {"messages": HI}
            answer = httpx.post(f"{server.url}/chat/completions", json=body, headers=headers)
            assert answer.status_code == status, answer.text
        wait_until(lambda: caplog.text.count("/v1/chat/completions") >= 2)
    assert " /chat/completions" not in caplog.text
    metrics = server.http.get("/metrics", headers=key).text
    assert 'route="/v1/chat/completions"' in metrics and 'route="other"' not in metrics


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_names_with_the_tag_latest(server: Running, path: str) -> None:
    for name in ("echo:latest", "default:latest"):
        answer = server.post(path, model=name, messages=HI, max_tokens=4)
        assert answer.status_code == 200 and answer.json()["model"] == "echo", answer.text
    unknown = server.post(path, model="none:latest", messages=HI, max_tokens=4)
    assert unknown.status_code == 404 and "'none:latest' not found" in unknown.text


def test_base_urls_below_a_root_path(start: Start) -> None:
    server = start(root_path="/llm")
    assert server.http.get("/llm/models").json()["object"] == "list"
