"""Every method of the vendors' clients against `ostro serve`, and the page with the results.

`environments.py clients` installs the clients.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from client_server import serve
from client_table import CLIENTS_OF_VENDORS, PAGE, make_models, page, rows_of

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]

RUNS = [
    (name, place)
    for name, client in CLIENTS_OF_VENDORS.items()
    for place in range(len(client.pythons))
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server of the starter model and of small models of the other tasks."""
    folder = tmp_path_factory.mktemp("models")
    with serve(folder / "log", *make_models(folder)) as url:
        yield url


@pytest.mark.parametrize(("name", "place"), RUNS)
def test_every_method_works_or_is_rejected_by_name(url: str, name: str, place: int) -> None:
    client = CLIENTS_OF_VENDORS[name]
    if not client.pythons[place].exists():
        pytest.skip("run tests/peers/environments.py clients")
    rows = rows_of(client, client.pythons[place], url)
    assert len(rows) > 10
    faults = [
        (row["route"], row["feature"], kind, cell)
        for row in rows
        for kind, cell in row.items()
        if cell.startswith("failed")
    ]
    assert not faults


def test_the_page_has_the_results(url: str) -> None:
    if not all(
        python.exists() for client in CLIENTS_OF_VENDORS.values() for python in client.pythons
    ):
        pytest.skip("run tests/peers/environments.py clients")
    assert PAGE.read_text() == page(url), "run python tests/peers/client_table.py"
