"""The server before the real engine in a process of its own, and a tiny model in that."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import torch
from tiny.model import change_weights, make_model
from tiny.server import RunningServer, serving

from ostro.core.errors import CheckpointError
from ostro.core.settings import Settings
from ostro.entrypoints.http.listener import listen
from ostro.entrypoints.http.options import Options
from ostro.entrypoints.http.server import Server
from ostro.entrypoints.operations.access.keys import sha256_of
from ostro.entrypoints.serve_config import ModelOptions

pytestmark = pytest.mark.process

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0}
ENDLESS = {**HELLO, "max_tokens": 100_000, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("m") / "tiny", max_position_embeddings=200_000)


@pytest.fixture(scope="module")
def real(folder: Path) -> Iterator[RunningServer]:
    with serving(Settings(reference=str(folder), max_seqs=2)) as found:
        yield found


def test_a_client_that_leaves_mid_stream_holds_no_block(real: RunningServer) -> None:
    address, body = urlsplit(real.url), json.dumps(ENDLESS).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    assert real.stats().blocks_used == 0
    with socket.create_connection((address.hostname, address.port), 10) as client:
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        came = b""
        while came.count(b"data: ") < 5:
            came += client.recv(4096)
        stats = real.stats()
        assert stats.running == 1 and stats.blocks_used > 0
    gone = time.monotonic()
    while (stats := real.stats()).running or stats.blocks_used:
        assert time.monotonic() - gone < 120, stats
        time.sleep(0.01)
    good = httpx.post(real.url + CHAT, json={**HELLO, "max_tokens": 5}, timeout=120).json()
    assert good["usage"]["completion_tokens"] <= 5 and good["choices"][0]["finish_reason"]


def test_a_model_that_computes_no_numbers_is_not_served(tmp_path: Path) -> None:
    damaged = make_model(tmp_path / "damaged")
    change_weights(damaged, model__norm__weight=torch.full((32,), float("nan")))
    asked = Settings(reference=str(damaged))
    with closing(listen("127.0.0.1", 0, False)) as listener:
        server = Server([ModelOptions(settings=asked)], Options(), listener, 0.0)
        with pytest.raises(CheckpointError, match=r"damaged: .* NaN or Inf; .* download its files"):
            asyncio.run(server.run())


def test_what_was_fetched_is_loaded_as_a_folder(folder: Path, tmp_path: Path) -> None:
    """A revision and a token are for who fetches: the engine process is given the folder."""
    source = tmp_path / "source.py"
    source.write_text(
        "from pathlib import Path\nfrom ostro.core.hooks import hookimpl\n@hookimpl\n"
        "def ostro_locate(reference, kind, settings):\n"
        f"    return Path({str(folder)!r}) if reference == 'org/tiny' else None\n"
    )
    asked = Settings(reference="org/tiny", revision="main", token_source="literal:x", max_seqs=2)
    with serving(asked, plugin_paths=[str(source)]) as real:
        ready = httpx.get(f"{real.url}/ready").json()
        assert (ready["status"], ready["model"]) == ("ready", "org/tiny")


def test_keys_do_not_see_the_cached_tokens_of_others(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.touch(mode=0o600)
    names = ("alice", "bob")
    file.write_text("".join(f"[[keys]]\nname='{n}'\nsha256='{sha256_of(n)}'\n" for n in names))
    prompt = "one prompt of many tokens " * 20

    def cached(real: RunningServer, key: str, **body: Any) -> int:
        asked = {"prompt": prompt, "max_tokens": 1, "temperature": 0, **body}
        headers = {"x-api-key": key}
        response = httpx.post(
            f"{real.url}/v1/completions", json=asked, headers=headers, timeout=120
        )
        found: int = response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        return found

    settings = Settings(reference=str(folder), max_seqs=2)
    with serving(settings, keys=file) as real:
        assert cached(real, "alice") == 0 and cached(real, "alice") > 0
        assert cached(real, "bob") == 0, "bob sees what alice has sent"
        assert cached(real, "bob", cache_salt="x") == 0 and cached(real, "bob", cache_salt="x") > 0
        assert cached(real, "alice", cache_salt="x") == 0
    with serving(settings, keys=file, share_prefixes=True) as real:
        assert cached(real, "alice") == 0 and cached(real, "bob") > 0
