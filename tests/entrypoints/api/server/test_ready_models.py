"""`GET /ready` states what loaded models offer for tool calls: with an echo engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from echo.model import make_model
from tiny.model_routes import admin, complete, options, server_of
from tiny.server import RunningServer
from tiny.turns import OWN

from ostro.core.settings import Settings
from ostro.entrypoints.serve_config import ModelOptions

SMALL = "a context of 4,096 tokens: coding agents send prompts of 10,000 tokens and more; "
SMALL += "raise --context if the model and the memory allow it"
FITS = {
    "notation": "hermes",
    "parser": "hermes",
    "chosen_by": "chat template",
    "declares": True,
    "writes": True,
    "reads": True,
    "reads_reasoning": True,
    "reason": "",
}
PLUGIN = """
from ostro import Parser, hookimpl

class Broken:
    reasoning = None

    def __init__(self, prompt_end, tools, controls=()):
        raise ValueError("/secret")

@hookimpl
def ostro_parsers():
    matches = lambda source: "<call>" in source
    yield Parser(name="broken", matches=matches, parser=f"{__name__}:Broken")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models with a template in the notation of "hermes", of a plugin, and without tools."""
    root = tmp_path_factory.mktemp("models")
    for name in ("one", "two"):
        make_model(root / name, template=OWN["own-hermes"])
    make_model(root / "mine", template=OWN["own-hermes"].replace("<tool_call>", "<call>"))
    make_model(root / "plain", template="{% for m in messages %}{{ m.content }}{% endfor %}")
    return root


def ready(server: RunningServer) -> dict[str, Any]:
    """The models of `GET /ready`, without a key."""
    response = httpx.get(f"{server.url}/ready")
    assert response.status_code == 200
    found = response.json()
    assert (found["status"], found["model"]) == ("ready", server.server.service.name)
    models: dict[str, Any] = found.get("models", {})
    return models


def misfit(folder: Path, **settings: Any) -> ModelOptions:
    return ModelOptions(settings=Settings(reference=str(folder / "two"), name="two", **settings))


def test_models_of_a_server(folder: Path) -> None:
    configured = [
        options(folder, "one"),
        misfit(folder, tool_parser="solar"),
        options(folder, "plain", "on demand"),
    ]
    with server_of(configured) as server:
        found = ready(server)
        assert set(found) == {"one", "two"}
        assert found["one"] == {"context": 4096, "tools": FITS, "notes": [SMALL]}
        reason = "the parser finds no call in what the chat template writes"
        chosen = {"parser": "solar", "chosen_by": "--tool-parser", "reads": False}
        chosen["reads_reasoning"] = False  # its markers are others
        assert found["two"]["tools"] == {**FITS, **chosen, "reason": reason}
        advice = f"{reason}; set --tool-parser hermes or generic"
        assert found["two"]["notes"] == [advice, SMALL]
        assert complete(server, "plain").status_code == 200
        plain = ready(server)["plain"]
        assert not plain["tools"]["declares"] and plain["tools"]["reads"] is None
        reason = "the chat template shows no tools to the model"
        assert plain["notes"] == [f"{reason}: requests with tools are refused", SMALL]
        admin(server, "/v1/models/unload", model="two")
        assert set(ready(server)) == {"one", "plain"}


def test_keys_hide_the_names_of_models(folder: Path) -> None:
    configured = [options(folder, "one"), options(folder, "two")]
    with server_of(configured, api_keys=["user"]) as server:
        assert set(ready(server)) == {"one"}


def test_a_parser_that_raises_is_a_misfit(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = tmp_path / "broken.py"
    plugin.write_text(PLUGIN)
    with server_of([options(folder, "mine")], plugin_paths=[str(plugin)]) as server:
        found = ready(server)["mine"]
        assert (found["tools"]["parser"], found["tools"]["reads"]) == ("broken", False)
        assert found["notes"][0].startswith("the parser fails on the calls that the chat template")
        assert "/secret" not in str(found)
    assert "raised ValueError: /secret" in caplog.text


def test_calls_that_stay_in_the_text(folder: Path) -> None:
    with server_of([misfit(folder, tool_parser="none")]) as server:
        found = ready(server)["two"]
        assert found["tools"]["parser"] is None and found["tools"]["reads"] is None
        assert found["notes"][0] == "--tool-parser none leaves calls in the text"
