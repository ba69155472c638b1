"""Faults of what surrounds a server: its clock, and the disk for temporary files."""

from __future__ import annotations

import errno
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest

YEAR = 365 * 24 * 3600


@pytest.fixture(scope="module")
def server(start: Any) -> Any:
    from ostro.core.plugins.manager import PluginManager
    from ostro.entrypoints.operations.documents.state import open_state

    plugins = PluginManager()
    plugins.load()
    return start(state=open_state("memory", None, plugins))


def upload(server: Any, size: int) -> Any:
    form = {"file": ("a.txt", b"x" * size), "purpose": (None, "user_data")}
    return server.http.post("/v1/files", files=form)


def respond(server: Any, **fields: Any) -> Any:
    answer = server.post("/v1/responses", input="hi", **fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Seconds by which `time.time` is off."""
    offset, now = [0.0], time.time
    monkeypatch.setattr(time, "time", lambda: now() + offset[0])
    yield offset


@pytest.mark.parametrize("years", [-1, 1])
def test_the_clock_may_be_set(server: Any, clock: list[float], years: int) -> None:
    """Answers, streams, jobs and stored documents do not depend on it; times in answers do."""
    file, stored = upload(server, 10).json(), respond(server)
    before = server.complete("abc").json()
    clock[0] = years * YEAR
    answer = server.complete("abc").json()
    assert answer["choices"] == before["choices"]
    assert abs(answer["created"] - before["created"] - years * YEAR) < 60
    events = server.events("/v1/completions", prompt="abc")
    assert "".join(event["choices"][0]["text"] for event in events) == "abc"
    content = server.http.get(f"/v1/files/{file['id']}/content")
    assert content.status_code == 200 and content.content == b"x" * 10
    assert respond(server, previous_response_id=stored["id"])["status"] == "completed"
    job = respond(server, background=True)
    deadline = time.monotonic() + 120
    while job["status"] in ("queued", "in_progress"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
        job = server.http.get(f"/v1/responses/{job['id']}").json()
    assert job["status"] == "completed"
    assert server.http.get("/health").status_code == 200


def test_a_form_that_cannot_be_spooled_is_an_error(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of forms above 1 MB are kept in temporary files."""

    def full(self: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tempfile.SpooledTemporaryFile, "rollover", full)
        answer = upload(server, 2_000_000)
        assert answer.status_code == 503 and "No space left" in answer.text
        assert upload(server, 1000).status_code == 200
    assert upload(server, 2_000_000).status_code == 200
