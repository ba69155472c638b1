"""Adapters over HTTP: what responses list, and chat templates of adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny.adapter_routes import CHAT, COMPLETE, LIST, load, refused

from ostro.core.messages.commands import AdapterInfo


def test_responses_list_generations(server: Any) -> None:
    generations = [load(server, name)["generation"] for name in ("sql", "style")]
    names = {"adapters": ["sql", "style"]}
    assert server.complete(**names).json()["adapter_generations"] == generations
    assert server.complete(["ab", "cd"], n=2, **names).json()["adapter_generations"] == generations
    assert server.chat(**names).json()["adapter_generations"] == generations
    for plain in (server.complete(), server.chat()):
        assert "adapter_generations" not in plain.json()


@pytest.mark.parametrize("path", [CHAT, COMPLETE])
def test_streams_tell_of_generations_where_a_choice_ends(server: Any, path: str) -> None:
    prompt = {"messages": "hi"} if path == CHAT else {"prompt": "hi"}
    generation = load(server, "sql")["generation"]
    events = server.events(path, **prompt, model="sql", n=2)
    assert {event["model"] for event in events} == {"sql"}
    for event in events:
        ends = any(choice["finish_reason"] for choice in event["choices"])
        assert event.get("adapter_generations") == ([generation] if ends else None)
    assert not any("adapter_generations" in event for event in server.events(path, **prompt))


def test_an_adapter_that_does_not_apply_is_not_listed(server: Any) -> None:
    load(server, "sql")
    server.echo.generations = lambda request: ()
    try:
        assert server.complete(adapter="sql").json()["adapter_generations"] == []
    finally:
        del server.echo.generations


def test_models_list_their_adapters(server: Any) -> None:
    generation = load(server, "sql")["generation"]
    base, card = server.http.get("/v1/models").json()["data"]
    assert base["id"] == "echo" and "parent" not in base
    assert card == {
        **base,
        "id": "sql",
        "root": "echo",
        "parent": "echo",
        "adapter_generation": generation,
    }
    assert server.http.get("/v1/models/sql").json() == card
    assert server.http.get("/v1/models/echo:sql").json() == {**card, "id": "echo:sql"}
    for absent in ("style", "echo:style"):
        answer = server.http.get(f"/v1/models/{absent}")
        refused(answer, 404, "model_not_found", "model")


def test_an_adapter_s_template(server: Any) -> None:
    load(server, "pirate"), load(server, "sql")

    def prompt(**body: Any) -> str:
        assert server.chat("hi", **body).status_code == 200
        return bytes(t for t in server.echo.seen[-1].tokens if t < 256).decode()

    assert prompt(model="pirate") == prompt(adapter="pirate") == "arr hi"
    base = prompt()
    assert "user" in base
    for others in (["sql"], ["pirate", "sql"], [{"name": "pirate", "scale": 0}]):
        assert prompt(adapters=others) == base
    seen = len(server.echo.seen)
    prompt(model="pirate")
    assert len(server.echo.seen) == seen + 1


def test_the_template_of_an_adapter_that_is_not_read_yet(server: Any, root: Path) -> None:
    path = root / "pirate"
    server.echo.adapters["lazy"] = AdapterInfo(name="lazy", reference=str(path))
    assert server.chat("hi", adapter="lazy").status_code == 200
    assert bytes(server.echo.seen[-1].tokens) == b"arr hi"
    server.echo.adapters["lazy"].loaded = False
    server.echo.adapters["lazy"].template = None
    assert server.http.get(LIST).status_code == 200
    assert server.chat("hi", adapter="lazy").status_code == 200
    assert bytes(server.echo.seen[-1].tokens) == b"arr hi"
    server.echo.adapters["hopeless"] = AdapterInfo(name="hopeless", reference="broken")
    refused(server.chat("hi", adapter="hopeless"), 422, "invalid_lora_adapter")
