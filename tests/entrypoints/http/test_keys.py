"""Keys over HTTP: limits, rate-limit headers, expiry, metrics of callers, WebSockets."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from echo.server import Running, Start, wait_until

from ostro.core.plugins.manager import PluginManager
from ostro.entrypoints.http import stream
from ostro.entrypoints.http.measurement import RequestMetrics
from ostro.entrypoints.http.middleware import AccessMiddleware, RequestMiddleware
from ostro.entrypoints.operations.access.keys import KeyRing, sha256_of
from ostro.entrypoints.operations.access.quotas import MINUTE, Quotas
from ostro.entrypoints.operations.documents.state import open_state

WriteRing = Callable[..., KeyRing]


@pytest.fixture(scope="module")
def write_ring(tmp_path_factory: pytest.TempPathFactory) -> WriteRing:
    """Make a ring of keys from a file; the text of a key is its name."""

    def write(**keys: dict[str, Any]) -> KeyRing:
        file = tmp_path_factory.mktemp("keys") / "keys.toml"
        file.touch(mode=0o600)
        lines = list[str]()
        for name, fields in keys.items():
            lines += ["[[keys]]", f'name = "{name}"', f'sha256 = "{sha256_of(name)}"']
            lines += [f"{field} = {value!r}" for field, value in fields.items()]
        file.write_text("\n".join(lines))
        return KeyRing(file=Path(file))

    return write


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


def complete(server: Any, name: str, **body: Any) -> httpx.Response:
    response: httpx.Response = server.http.post(
        "/v1/completions", json={"prompt": "hello", **body}, headers=bearer(name)
    )
    return response


def test_requests_per_minute(start: Any, write_ring: WriteRing) -> None:
    ring = write_ring(alice={"requests_per_minute": 3}, bob={"requests_per_minute": 3})
    server = start(ring=ring)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: complete(server, "alice"), range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] * 3 + [429] * 5
    for answer in answers:
        assert answer.headers["x-ratelimit-limit-requests"] == "3"
        assert "x-ratelimit-limit-tokens" not in answer.headers
    refused = complete(server, "alice")
    error = refused.json()["error"]
    assert error["code"] == "rate_limit_exceeded" and "3 requests per minute" in error["message"]
    assert 50 <= int(refused.headers["retry-after"]) <= 60
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert refused.headers["x-request-id"]
    assert complete(server, "bob").headers["x-ratelimit-remaining-requests"] == "2"
    for path in ("/health", "/ready"):  # probes count towards no limit
        assert server.http.get(path, headers=bearer("alice")).status_code == 200


def test_tokens_per_minute(start: Any, write_ring: WriteRing) -> None:
    server = start(ring=write_ring(alice={"tokens_per_minute": 100}))
    answer = complete(server, "alice", max_tokens=40, ignore_eos=True)
    assert answer.json()["usage"]["total_tokens"] == 45
    assert answer.headers["x-ratelimit-limit-tokens"] == "100"
    answer = complete(server, "alice", max_tokens=40)  # reserves 45, uses 10
    assert answer.json()["usage"]["total_tokens"] == 10
    answer = complete(server, "alice", max_tokens=40)
    assert answer.status_code == 200, "what the second did not use was not given back"
    refused = complete(server, "alice", max_tokens=90)
    assert refused.status_code == 429 and "100 tokens per minute" in refused.text
    assert int(refused.headers["retry-after"]) > 50
    assert refused.headers["x-ratelimit-remaining-tokens"] == "35"
    refused = complete(server, "alice", prompt="x" * 101, max_tokens=1)
    assert refused.status_code == 413 and "the request has 102 tokens" in refused.text
    assert "retry-after" not in refused.headers
    assert complete(server, "alice", max_tokens=5).status_code == 200


def test_a_client_that_disconnects_gives_back_what_it_reserved(
    start: Any, write_ring: WriteRing
) -> None:
    limits = {"tokens_per_minute": 1000, "concurrent_requests": 1}
    server = start(ring=write_ring(alice=limits))
    server.echo.step_seconds = 0.05  # the stream lasts longer than the test
    body = {"prompt": "hello", "max_tokens": 900, "ignore_eos": True, "stream": True}
    stream = server.http.stream("POST", "/v1/completions", json=body, headers=bearer("alice"))
    with stream as response:
        lines = response.iter_lines()  # closes the connection when it is collected
        assert next(lines).startswith("data: ")
        refused = complete(server, "alice", max_tokens=1)
        assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
        assert "1 requests of this API key are running" in refused.text
        assert refused.headers["x-ratelimit-remaining-tokens"] == "95"
    server.echo.step_seconds = 0.0
    wait_until(lambda: server.service.engine.admission.rows == 0)
    answer = complete(server, "alice", max_tokens=1)
    assert int(answer.headers["x-ratelimit-remaining-tokens"]) > 500


def test_the_official_client_sees_rate_limits(start: Any, write_ring: WriteRing) -> None:
    server = start(ring=write_ring(alice={"requests_per_minute": 1}))
    options = {"base_url": f"{server.url}/v1", "max_retries": 0}
    with openai.OpenAI(api_key="alice", **options) as client:  # type: ignore[arg-type]
        raw = client.completions.with_raw_response.create(model="echo", prompt="a")
        assert raw.headers["x-ratelimit-remaining-requests"] == "0"
        with pytest.raises(openai.RateLimitError) as refused:
            client.completions.create(model="echo", prompt="a")
    assert refused.value.code == "rate_limit_exceeded"
    assert int(refused.value.response.headers["retry-after"]) > 50
    assert refused.value.response.headers["x-ratelimit-reset-requests"].endswith("s")


def test_choices_count_towards_the_queue(start: Any) -> None:
    server = start(limit=8)
    admission = server.service.engine.admission
    with ThreadPoolExecutor(2) as pool:
        with server.paused():
            accepted = [pool.submit(server.complete, n=6)]
            wait_until(lambda: admission.rows == 6)
            refused = server.complete(n=3)
            assert refused.status_code == 503 and refused.headers["retry-after"]
            assert refused.json()["error"]["code"] == "overloaded"
            assert "6 sequences are under way" in refused.text
            accepted.append(pool.submit(server.complete, n=2))
            wait_until(lambda: admission.rows == 8)
        assert [each.result().status_code for each in accepted] == [200, 200]
    many = server.complete(["a", "b", "c"], n=4)  # 12 of at most 8, but alone
    assert many.status_code == 200 and len(many.json()["choices"]) == 12


@pytest.mark.parametrize("streamed", [False, True])
def test_a_request_that_waits_too_long(
    start: Start, monkeypatch: pytest.MonkeyPatch, streamed: bool
) -> None:
    monkeypatch.setattr(stream, "KEEP_ALIVE", 10_000.0)  # a comment would begin the response
    server = start()
    server.service.engine.max_wait = 1000
    with ThreadPoolExecutor(1) as pool, server.paused():
        answer = pool.submit(server.complete, "a", stream=streamed)
        wait_until(lambda: server.echo.live)
        assert server.http.get("/health").status_code == 200 and not answer.done()
        server.loop.advance(1000)
        refused = answer.result()
    assert refused.status_code == 503 and "waited 1000 s" in refused.text
    assert server.complete("a").status_code == 200


def run_batch(
    server: Running, name: str, prompts: list[str], runs: int, **fields: Any
) -> list[dict[str, Any]]:
    """The results of a message batch. runs: its requests that the engine gets."""
    url, headers = "/v1/messages/batches", {"x-api-key": name}
    requests = [
        {
            "custom_id": f"r{n}",
            "params": {
                "model": "echo",
                "messages": [{"role": "user", "content": prompt}],
                **fields,
            },
        }
        for n, prompt in enumerate(prompts)
    ]
    before = len(server.echo.seen)
    made = server.http.post(url, json={"requests": requests}, headers=headers).json()
    wait_until(lambda: server.loop.advance(1) or len(server.echo.seen) == before + runs)
    path = f"{url}/{made['id']}/results"
    while (found := server.http.get(path, headers=headers)).status_code != 200:
        assert found.status_code in (400, 429), found.text
        server.loop.advance(1)
    return [json.loads(line)["result"] for line in found.text.splitlines()]


def test_requests_of_a_batch_wait_for_the_limits_of_their_key(
    start: Start, write_ring: WriteRing
) -> None:
    """They count, wait where others are refused, and fail only if they can never run."""
    ring = write_ring(
        alice={"requests_per_minute": 8, "concurrent_requests": 2},
        bob={"tokens_per_minute": 120},
    )
    plugins = PluginManager()
    plugins.load()
    quotas = Quotas(clock=lambda: asyncio.get_running_loop().time())
    server = start(ring=ring, quotas=quotas, state=open_state("memory", 3600.0, plugins))
    before = server.loop.time()
    found = run_batch(server, "alice", ["hi"] * 12, 12, max_tokens=1)
    assert [each["type"] for each in found] == ["succeeded"] * 12
    assert server.loop.time() - before > MINUTE, "the requests of the batch count towards no limit"
    found = run_batch(server, "bob", ["hi", "x" * 200, *["hi"] * 8], 9, max_tokens=10)
    assert [each["type"] for each in found] == ["succeeded", "errored", *["succeeded"] * 8]
    error = found[1]["error"]["error"]
    assert error["type"] == "request_too_large" and "120 tokens per minute" in error["message"]
    headers = complete(server, "bob", max_tokens=1).headers
    assert int(headers["x-ratelimit-remaining-tokens"]) < 114


def test_allowed_models_and_adapters(start: Any, write_ring: WriteRing, tmp_path: Path) -> None:
    """The lists hold for names and generations, in `model`, `adapter` and `adapters` alike."""
    for name in ("sql", "style"):
        (tmp_path / name).mkdir()
    sql, style = [sha256(str(tmp_path / name).encode()).hexdigest() for name in ("sql", "style")]
    ring = write_ring(
        boss={"scopes": ["infer", "admin"]},
        alice={"models": ["echo"], "adapters": ["sql", sql]},
        bob={"models": ["echo"], "adapters": ["sql"]},
        carol={"models": []},
    )
    server = start(ring=ring, adapter_root=tmp_path)
    for name in ("sql", "style"):
        body = {"lora_name": name, "lora_path": name}
        loaded = server.http.post("/v1/load_lora_adapter", json=body, headers=bearer("boss"))
        assert loaded.status_code == 200, loaded.text

    def selections(name: str) -> list[dict[str, Any]]:
        given = [name, {"name": name}, {"name": name, "scale": 0.5}]
        found: list[dict[str, Any]] = [{"model": f"{name}"}, {"model": f"echo:{name}"}]
        found += [{"model": f"default:{name}"}, {"adapters": given[:1]}, {"adapters": given[2:]}]
        return [*found, *({"adapter": each} for each in given)]

    by_generation = [{"adapter": {"generation": sql}}, {"adapters": [{"generation": sql}]}]
    for body in ({}, {"model": "echo"}, {"model": "default"}, *selections("sql"), *by_generation):
        assert complete(server, "alice", **body).status_code == 200, body
        assert complete(server, "carol", **body).status_code == 403, body
    denied = [*selections("style"), {"adapter": {"generation": style}}]
    denied += [{"adapters": ["sql", "style"]}, {"adapters": ["sql", {"generation": style}]}]
    for body in denied:
        assert complete(server, "alice", **body).status_code == 403, body
    for body in by_generation:
        assert complete(server, "bob", **body).status_code == 403, body
    listed = {
        name: [m["id"] for m in server.http.get("/v1/models", headers=bearer(name)).json()["data"]]
        for name in ("boss", "alice", "carol")
    }
    assert listed == {"boss": ["echo", "sql", "style"], "alice": ["echo", "sql"], "carol": []}
    unknown = complete(server, "alice", model="styles")
    assert unknown.status_code == 404 and "'style'" not in unknown.text.replace("'styles'", "")
    assert "nearest" not in unknown.text and "'echo'" in unknown.text
    assert "'echo'" not in complete(server, "carol", model="styles").text


def test_expired_keys(start: Any, write_ring: WriteRing) -> None:
    ring = write_ring(old={}, new={})
    text = ring.file.read_text()  # type: ignore[union-attr]
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ring.file.write_text(text.replace('name = "old"', f'name = "old"\nexpires = {now}'))  # type: ignore[union-attr]
    ring.reload()
    server = start(ring=ring)
    refused = complete(server, "old")
    assert refused.status_code == 401 and "the API key 'old' has expired" in refused.text
    assert complete(server, "new").status_code == 200


def test_a_key_bounds_the_priority_and_salts_the_cache(start: Any, write_ring: WriteRing) -> None:
    server = start(ring=write_ring(alice={"priority": 2}, bob={"priority": -5}))
    for name in ("alice", "bob"):
        for body in ({}, {"priority": -7, "cache_salt": "x"}, {"priority": 9, "cache_salt": "x"}):
            assert complete(server, name, **body).status_code == 200
    seen = server.echo.seen
    assert [request.priority for request in seen[:3]] == [2, 2, 9]
    assert [request.priority for request in seen[4:]] == [-5, 9]
    salts = [request.salt for request in seen]
    assert salts[1] == salts[2] and salts[4] == salts[5] and len({*salts}) == 4
    assert not {"", "x"} & {*salts}


def test_metrics_of_callers(start: Any, write_ring: WriteRing) -> None:
    keys = {"alice": {"requests_per_minute": 1}, "prometheus": {"scopes": ["metrics"]}}
    server = start(ring=write_ring(**keys))
    complete(server, "alice")
    complete(server, "alice")
    text = server.http.get("/metrics", headers=bearer("prometheus")).text
    for line in (
        'ostro_key_requests_total{key="alice"} 1.0',
        'ostro_key_refused_total{key="alice"} 1.0',
        'ostro_key_running{key="prometheus"} 1.0',
    ):
        assert line in text
    assert server.http.get("/metrics").status_code == 401


def test_metrics_without_a_key(start: Any) -> None:
    server = start(keys=["secret"], open_metrics=True)
    assert "ostro_ready 1.0" in server.http.get("/metrics").text
    assert server.http.get("/v1/models").status_code == 401


@pytest.mark.parametrize("key", ["alice", "wrong"])
def test_websockets_have_limits_and_callers(write_ring: WriteRing, key: str) -> None:
    sent, callers = list[Any](), list[str]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        callers.append(scope["state"]["caller"].name)
        await send({"type": "websocket.accept"})

    async def send(message: Any) -> None:
        sent.append(message)

    async def connect() -> None:
        headers = [(b"x-api-key", key.encode())]
        scope = {"type": "websocket", "path": "/v1/realtime", "headers": headers}
        await access(scope, None, send)  # type: ignore[arg-type]

    ring, quotas = write_ring(alice={"requests_per_minute": 1}), Quotas()
    inner = AccessMiddleware(app, ring=ring, quotas=quotas, hosts=None)
    access = RequestMiddleware(inner, RequestMetrics("echo"))
    asyncio.run(connect())
    asyncio.run(connect())
    kinds = [message["type"] for message in sent]
    if key == "wrong":
        assert kinds == ["websocket.close"] * 2 and not callers
    else:
        assert kinds == ["websocket.accept", "websocket.close"] and callers == ["alice"]
        assert (b"x-ratelimit-remaining-requests", b"0") in sent[0]["headers"]
        assert quotas.known["alice"].usage.running == 0


@pytest.mark.slow
def test_sixty_requests_per_minute_for_three_minutes(start: Any, write_ring: WriteRing) -> None:
    server = start(ring=write_ring(alice={"requests_per_minute": 60}))
    accepted = list[float]()
    begin = time.monotonic()
    while (sent := time.monotonic() - begin) < 180:
        if server.http.get("/v1/models", headers=bearer("alice")).status_code == 200:
            accepted.append(sent)
        time.sleep(0.05)
    # Sixty at the start of each minute; a request is counted up to a round trip after `sent`.
    assert len(accepted) == 180
    assert [sum(i * 60 <= at < i * 60 + 30 for at in accepted) for i in range(3)] == [60] * 3
