"""Every method of the vendors' clients against `ostro serve`, and the page with the results.

`environments.py clients` installs the clients.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))

from client_server import NODE_MODULES, check_schema, documented_fields, lines_of, serve
from client_table import (
    CLIENTS,
    CLIENTS_OF_VENDORS,
    OWN,
    PAGE,
    Row,
    make_models,
    node_rows,
    options_of,
    page,
    rows_of,
)

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]

HAS_NODE = shutil.which("node") is not None and NODE_MODULES.is_dir()
RUNS = [
    (name, place)
    for name, client in CLIENTS_OF_VENDORS.items()
    for place in range(len(client.pythons))
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with small models of all tasks."""
    folder = tmp_path_factory.mktemp("models")
    make_models(folder)
    return folder


@pytest.fixture(scope="module")
def url(models: Path) -> Iterator[str]:
    """The URL of a server of the starter model and of small models of the other tasks."""
    names = ("ranker", "judge", "whisper", "speaker", "painter", "vision")
    with serve(models / "log", *options_of(models, *names)) as url:
        yield url


@pytest.mark.parametrize(("name", "place"), RUNS)
def test_every_method_works_or_is_rejected_by_name(url: str, name: str, place: int) -> None:
    client = CLIENTS_OF_VENDORS[name]
    if not client.pythons[place].exists():
        pytest.skip("run tests/peers/environments.py clients")
    rows = rows_of(client, client.pythons[place], url)
    assert len(rows) > 10
    assert not faults_of(rows)


def faults_of(rows: list[Row]) -> list[tuple[str, str, str, str]]:
    return [
        (row["route"], row["feature"], kind, cell)
        for row in rows
        for kind, cell in row.items()
        if cell.startswith("failed")
    ]


def test_every_method_in_javascript(url: str) -> None:
    if not HAS_NODE:
        pytest.skip("run tests/peers/environments.py clients, with node and npm")
    rows = node_rows(url)
    assert [len(found) > 5 for found in rows.values()] == [True] * 3
    assert not [fault for found in rows.values() for fault in faults_of(found)]


def test_the_page_has_the_results(url: str) -> None:
    if not HAS_NODE or not all(
        python.exists() for client in CLIENTS_OF_VENDORS.values() for python in client.pythons
    ):
        pytest.skip("run tests/peers/environments.py clients")
    assert PAGE.read_text() == page(url), "run python tests/peers/client_table.py"


HEADERS = ("user_profile_id", "workspace_id")
"""Parameters of Anthropic's client that it sends as headers."""


def parameter_fault(result: dict[str, Any], status: str | None) -> str:
    """Why the result of a value contradicts the documented status of its field; "" if not."""
    field, message = result["field"], result.get("message") or ""
    named = field in message or (result.get("param") or "").startswith(field)
    if result["status"] == 200:
        echoed = status != "echoed" or "events" in result or result["echo"] is not None
        wrong = status == "rejected" and result["value"]
        return "not rejected" if wrong else "" if echoed else "not echoed"
    if status is None:
        return "not documented"
    if result["status"] not in (400, 404) or not named:
        return f"not rejected by name: {result['status']} {message}"
    return "unknown" if message.startswith(f"unknown field '{field}'") else ""


def test_every_value_of_every_parameter(url: str) -> None:
    """Each is valid by the types of OpenAI's or Anthropic's client: honoured or rejected by name.

    The answers are those that docs/http-api.md states, and pass the validation of the clients.
    """
    lines = lines_of(OWN, "-W", "ignore", CLIENTS / "parameters.py", url)
    results = [json.loads(line) for line in lines]
    assert len(results) > 5000
    fields = documented_fields()
    faults = {
        (result["route"], result["field"], fault): result["value"]
        for result in results
        if result["field"] not in HEADERS
        and (fault := parameter_fault(result, fields[result["route"]].get(result["field"])))
    }
    assert not faults


@pytest.mark.parametrize(
    ("result", "status"),
    [
        ({"status": 200, "value": "x", "echo": None}, "rejected"),
        ({"status": 200, "value": "x", "echo": None}, "echoed"),
        ({"status": 400, "message": "a is wrong"}, None),
        ({"status": 400, "message": "something is wrong", "param": "b"}, "honoured"),
        ({"status": 400, "message": "unknown field 'a'", "param": "a"}, "rejected"),
        ({"status": 500, "message": "a is wrong"}, "honoured"),
        ({"status": 0, "message": "APIResponseValidationError: a"}, "honoured"),
    ],
)
def test_the_check_of_parameters_finds_faults(result: dict[str, Any], status: str | None) -> None:
    assert parameter_fault({"field": "a", **result}, status)


def test_schemathesis_with_more_models(models: Path, tmp_path: Path) -> None:
    """Images are left out: one of the default size takes so long that texts exceed its limit."""
    names = ("ranker", "judge", "whisper", "speaker", "vision")
    with serve(tmp_path / "log", *options_of(models, *names)) as url:
        check_schema(url, tmp_path)
