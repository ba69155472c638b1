"""`ostro plugins` shows what was found, and fails where something is broken."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ostro.core.deprecated import RemovedInOstro1
from ostro.core.plugins.manager import HOOKS, ROUTES_NOTE
from ostro.entrypoints.cli import main


@pytest.fixture
def broken(tmp_path: Path) -> Iterator[str]:
    file = tmp_path / "broken_plugin_of_a_test.py"
    file.write_text("raise RuntimeError('[red]no luck[/red]')")
    yield str(file)
    sys.modules.pop(file.stem, None)


def test_plugins_are_listed_in_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert ["architectures.granite", "active", "built in", "architectures: granite"] in lines
    assert all(len(line) == 4 for line in lines)


def test_plugins_are_listed_as_json(capsys: pytest.CaptureFixture[str], broken: str) -> None:
    assert main(["plugins", "--json", "--plugin", broken]) == 1
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["architectures.granite"]["offers"] == {"architectures": ["granite"]}
    assert found["broken_plugin_of_a_test"]["status"] == "broken"
    assert found["broken_plugin_of_a_test"]["source"] == broken


def test_routes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    [offers] = [line[3] for line in lines if line[0] == "plugins.apis.text_tools"]
    assert offers == "routes: POST /tokenize, POST /detokenize, POST /apply-template"
    assert main(["plugins", "--json"]) == 0
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert "GET /api/tags" in found["plugins.apis.ollama"]["offers"]["routes"]


def test_routes_that_only_a_server_knows_are_noted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "old_plugin_of_a_test.py"
    file.write_text(
        "from ostro import hookimpl\n@hookimpl\ndef ostro_routes(server):\n    return [server.x]\n"
    )
    with pytest.warns(RemovedInOstro1, match=r"ostro_routes\(server\) is deprecated"):
        assert main(["plugins", "--plugin", str(file)]) == 0
    sys.modules.pop(file.stem)
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    [shown] = [line for line in lines if line[0] == file.stem]
    assert shown[1] == "active"
    assert shown[3] == f"ostro_routes; {ROUTES_NOTE}"


def test_plugins_are_listed_by_hook(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "--hooks", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == list(HOOKS)
    assert found["ostro_locate"][0] == "plugins.sources.folder"
    assert found["ostro_locate"][-1] == "plugins.sources.hub"
    assert main(["plugins", "--hooks"]) == 0
    assert "ostro_caches: plugins.caches.recurrent, plugins.caches.paged" in capsys.readouterr().out


def test_a_terminal_gets_a_table(
    capsys: pytest.CaptureFixture[str], broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["plugins", "--plugin", broken]) == 1
    out = capsys.readouterr().out
    assert "architectures.granite" in out and "[red]no luck[/red]" in out


def test_a_path_without_a_plugin_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "--plugin", "/no/such/plugin"]) == 2
    assert "is not a plugin" in capsys.readouterr().err
