"""The route beside `/v1/completions` of the same server."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """A client of `ostro serve` with the starter model."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "ostro", "serve", "--offline", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        try:
            end = time.monotonic() + 120
            while not is_ready(client):
                assert server.poll() is None and time.monotonic() < end
                time.sleep(0.2)
            yield client
        finally:
            server.terminate()
            server.wait(30)


def is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/ready").status_code == 200
    except httpx.TransportError:
        return False


def complete(client: httpx.Client, **fields: Any) -> Any:
    response = client.post("/completion", json={"prompt": PROMPT, "n_predict": 8, **fields})
    return response.json() if response.status_code == 200 else response


def test_the_text_is_that_of_completions(client: httpx.Client) -> None:
    fields = {"prompt": PROMPT, "max_tokens": 8, "seed": 1, "temperature": 1.0}
    other = client.post("/v1/completions", json=fields).json()
    answer = complete(client, seed=1, temperature=1.0)
    assert answer["content"] == other["choices"][0]["text"]
    assert answer["tokens_evaluated"] == other["usage"]["prompt_tokens"]
    assert answer["tokens_predicted"] == other["usage"]["completion_tokens"]


def test_a_stream_has_the_same_text_and_end(client: httpx.Client) -> None:
    whole = complete(client, temperature=0)
    body = {"prompt": PROMPT, "n_predict": 8, "temperature": 0, "stream": True}
    with client.stream("POST", "/completion", json=body) as response:
        lines = [line for line in response.iter_lines() if line]
    assert response.headers["content-type"].startswith("text/event-stream")
    *pieces, end = (json.loads(line.removeprefix("data: ")) for line in lines)
    assert pieces and not any(piece["stop"] for piece in pieces)
    assert "".join(piece["content"] for piece in pieces) == whole["content"]
    assert {**end, "content": whole["content"], "tokens_cached": 0} == {**whole, "tokens_cached": 0}


def test_the_reason_of_the_end(client: httpx.Client) -> None:
    assert complete(client, ignore_eos=True)["stop_type"] == "limit"
    text = complete(client, temperature=0)["content"]
    word = text.split()[0]
    stopped = complete(client, temperature=0, stop=[word])
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", word)
    assert word not in stopped["content"]


def test_unknown_fields_are_errors(client: httpx.Client) -> None:
    for fields in ({"mirostat": 2}, {"temperature": -1}):
        assert complete(client, **fields).status_code == 400
