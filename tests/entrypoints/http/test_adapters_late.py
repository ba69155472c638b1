"""Adapters that take long to read, behind `serve`: one load at a time, and nobody else waits."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import save_file
from tiny.model import CONFIG, make_model
from tiny.server import RunningServer, serving

from ostro.core.settings import Settings

pytestmark = pytest.mark.process

LOAD, COMPLETE = "/v1/load_lora_adapter", "/v1/completions"
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
PATIENCE = 30.0
PLUGIN = {
    "__init__.py": """
from ostro import Adapter, hookimpl


def claims(files, config):
    return config.get("format") == "late"


@hookimpl
def ostro_adapters():
    yield Adapter(name="late", claims=claims, load="ostro_late.read:read")
""",
    "read.py": """
import time

from ostro import AdapterWeights, LowRank

NAME = "model.layers.0.self_attn.o_proj"


def read(source):
    (source.files.root / "begun").touch()
    while not (source.files.root / "gate").exists():
        time.sleep(0.01)
    file = source.open("weights.safetensors")
    return AdapterWeights(kind="late", weights={NAME: LowRank(a=file.read("a"), b=file.read("b"))})
""",
}


@dataclass(frozen=True)
class Late:
    """A server, and a folder of adapters that are not read before their gates are opened."""

    server: RunningServer
    root: Path

    def make(self, name: str) -> Path:
        return make_late(self.root / name)

    def load(self, name: str) -> httpx.Response:
        return self.server.post(LOAD, lora_name=name, lora_path=name)

    def complete(self, **body: Any) -> Any:
        answer = self.server.post(COMPLETE, prompt="hello again", **GREEDY, **body)
        assert answer.status_code == 200, answer.text
        return answer.json()


def make_late(folder: Path) -> Path:
    """An adapter of the plugin's kind."""
    folder.mkdir(parents=True)
    d = CONFIG["hidden_size"]
    generator = torch.Generator().manual_seed(len(folder.name))
    factors = {
        "a": torch.randn(4, d, generator=generator),
        "b": torch.randn(d, 4, generator=generator),
    }
    save_file(factors, folder / "weights.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"format": "late"}))
    return folder


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Late]:
    home = tmp_path_factory.mktemp("late")
    (home / "ostro_late").mkdir()
    for name, text in PLUGIN.items():
        (home / "ostro_late" / name).write_text(text)
    lazy = make_late(home / "adapters" / "lazy")
    settings = Settings(
        reference=str(make_model(home / "base")),
        dtype="float32",
        adapters=(f"lazy={lazy}",),
        adapter_root=str(lazy.parent),
    )
    with serving(settings, plugin_paths=[str(home / "ostro_late")]) as server:
        try:
            yield Late(server, lazy.parent)
        finally:
            for folder in lazy.parent.iterdir():  # nothing may hold the engine
                (folder / "gate").touch()


def test_one_load_at_a_time(late: Late) -> None:
    first, second = late.make("one"), late.make("second")
    (second / "gate").touch()
    with ThreadPoolExecutor(1) as threads:
        loading = threads.submit(late.load, "one")
        until((first / "begun").exists)
        refused = late.load("second")
        assert refused.status_code == 429, refused.text
        error = refused.json()["error"]
        assert error["code"] == "lora_load_busy" and "'one'" not in error["message"]
        assert refused.headers["retry-after"] and not (second / "begun").exists()
        assert not loading.done() and late.complete()["choices"]
        (first / "gate").touch()
        response = loading.result(PATIENCE)
    assert response.status_code == 200, response.text
    assert late.load("second").status_code == 200
    texts = {late.complete(model=name)["choices"][0]["text"] for name in ("base", "one", "second")}
    assert len(texts) == 3


def test_other_requests_continue_while_an_adapter_is_read(late: Late) -> None:
    """A stream that has begun goes on, and others begin and end, while one request waits."""
    lazy, url = late.root / "lazy", late.server.url + COMPLETE
    base = late.complete()["choices"][0]["text"]
    long = {"prompt": "hello", "stream": True, **GREEDY, "max_tokens": 600}
    with ThreadPoolExecutor(1) as threads, httpx.stream("POST", url, json=long) as response:
        pieces = (line for line in response.iter_lines() if line.startswith("data: {"))
        next(pieces)
        waiting = threads.submit(late.complete, adapter="lazy")
        until((lazy / "begun").exists)
        assert sum(1 for _ in pieces) > 1, "the stream ends while the adapter is being read"
        assert late.complete()["choices"][0]["text"] == base
        assert not waiting.done(), "nothing has been read"
        (lazy / "gate").touch()
        response = waiting.result(PATIENCE)
    assert len(response["adapter_generations"]) == 1
    assert response["choices"][0]["text"] != base
