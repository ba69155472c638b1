"""`--trusted-proxies`: whose X-Forwarded-For names the client, and what the log has of it."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
from echo.server import Running, Start, wait_until
from starlette.types import Receive, Scope, Send

from ostro.core.errors import UsageError
from ostro.entrypoints.http.listener import listen
from ostro.entrypoints.http.log import ACCESS, JsonFormatter, TextFormatter, log_request
from ostro.entrypoints.http.proxies import parse_proxies
from ostro.entrypoints.http.request_record import RequestRecord
from ostro.entrypoints.http.web import Web

from .test_workers import launch

FORGED = {"x-forwarded-for": '203.0.113.9 FAKE7:0 api-key-1 "GET /', "x-forwarded-proto": "https"}
REAL = {"x-forwarded-for": "198.51.100.7, 203.0.113.9", "x-forwarded-proto": "https"}


async def seen(headers: dict[str, str], *trusted: str) -> tuple[str, str]:
    """The address of the client and the scheme that the application sees of a local request."""
    scopes: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    with listen("127.0.0.1", 0, False) as listener:
        web = Web.of(app, trusted_proxies=trusted)
        serving = asyncio.ensure_future(web.serve(sockets=[listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with httpx.AsyncClient(verify=False) as client:
            await client.get(url, headers=headers)
        web.stop()
        await serving
    return scopes[0]["client"][0], scopes[0]["scheme"]


@pytest.mark.parametrize(
    ("headers", "trusted", "expected"),
    [
        (REAL, [], ("127.0.0.1", "http")),
        (FORGED, [], ("127.0.0.1", "http")),
        (REAL, ["10.0.0.0/8", "::1"], ("127.0.0.1", "http")),
        (REAL, ["127.0.0.1"], ("203.0.113.9", "https")),
        (REAL, ["127.0.0.0/8", "203.0.113.0/24"], ("198.51.100.7", "https")),
        (REAL, ["*"], ("198.51.100.7", "https")),
    ],
)
def test_only_trusted_proxies_name_the_client(
    monkeypatch: pytest.MonkeyPatch,
    headers: dict[str, str],
    trusted: list[str],
    expected: tuple[str, str],
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")  # uvicorn's variable has no effect
    assert asyncio.run(seen(headers, *trusted)) == expected


def test_valid_proxies() -> None:
    assert parse_proxies("") == []
    assert parse_proxies("*") == ["*"]
    text = "127.0.0.1, 10.0.0.0/8,::1,fd00::/8"
    assert parse_proxies(text) == ["127.0.0.1", "10.0.0.0/8", "::1", "fd00::/8"]


@pytest.mark.parametrize(
    "text",
    [
        "proxy.example",
        "127.0.0.1,",
        ",",
        " ",
        "10.0.0.1/8",
        "127.0.0.1/33",
        "127.0.0",
        "*,::1",
        "a\nb",
    ],
)
def test_invalid_proxies(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--trusted-proxies .*: expected") as caught:
        parse_proxies(text)
    assert str(caught.value).isprintable()


def test_the_log_has_the_address_of_the_connection(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, ACCESS)
    server: Running = start(access_log=True)
    server.http.get("/health", headers=FORGED)
    wait_until(lambda: any(record.name == ACCESS for record in caplog.records))
    (record,) = (record for record in caplog.records if record.name == ACCESS)
    line = TextFormatter().format(record)
    assert "127.0.0.1:" in line and "FAKE" not in line and "203.0.113" not in line


@pytest.mark.parametrize(
    ("client", "shown"),
    [
        (("192.0.2.1", 5), "192.0.2.1:5"),
        (("2001:db8::1", 5), "2001:db8::1:5"),
        (("fe80::1%eth0", 5), "fe80::1%25eth0:5"),
        (('1.2.3.4 F "GET /', 0), "1.2.3.4%20F%20%22GET%20/:0"),
        (("a\r\nb\x1b[31m\u2028", 0), "a%0D%0Ab%1B%5B31m%E2%80%A8:0"),
        (None, "-:0"),
    ],
)
def test_addresses_are_escaped(caplog: pytest.LogCaptureFixture, client: Any, shown: str) -> None:
    caplog.set_level(logging.INFO, ACCESS)
    scope: Any = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": client}
    log_request(RequestRecord(scope, "id", ""))
    (record,) = caplog.records
    text, line = TextFormatter().format(record), JsonFormatter().format(record)
    assert text.split(" ")[2] == shown
    host, port = client or ("-", 0)
    assert json.loads(line)["client"] == f"{host}:{port}"
    for each in (text, line):
        assert each.isascii() and each.isprintable()


def test_long_addresses_are_cut(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, ACCESS)
    scope: Any = {"type": "http", "method": "GET", "path": "/", "headers": []}
    log_request(RequestRecord({**scope, "client": ("x" * 30_000, 5)}, "id", ""))
    (record,) = caplog.records
    assert len(TextFormatter().format(record)) < 1000
    assert len(JsonFormatter().format(record)) < 1000


@pytest.mark.process
@pytest.mark.parametrize(("trusted", "shown"), [([], "127.0.0.1"), (["127.0.0.1"], "203.0.113.9")])
def test_proxies_of_workers(tmp_path: Path, trusted: list[str], shown: str) -> None:
    with launch(tmp_path, count=2, access_log=True, trusted_proxies=trusted) as served:
        for path in ("/v1/models", "/health"):  # a worker answers the first, the server the second
            url, headers = served.process.url + path, {"x-api-key": "ann", **REAL}
            assert httpx.get(url, headers=headers).status_code == 200
        served.process.process.terminate()
        code, _, err = served.process.end()
    lines = [line.split(" ") for line in err.splitlines() if '"GET ' in line]
    assert code == 0 and [line[2].partition(":")[0] for line in lines] == [shown] * 2, err
