"""Adapters made by PEFT behind `serve`: what comes over HTTP is what Python computes with them."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny.model import make_model
from tiny.server import RunningServer, serving
from tiny.trained import train
from transformers import LlamaForCausalLM

import ostro
from ostro.core.errors import AdapterNotFound
from ostro.core.settings import Settings
from ostro.entrypoints.python.model import LocalModel

pytestmark = pytest.mark.slow
CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12}
TEMPLATE = "{% for message in messages %}the way of {{ message.content }}{% endfor %}"


@dataclass(frozen=True)
class Made:
    """A model, and adapters in a folder beside it."""

    model: Path
    adapters: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("models")
    model = make_model(root / "base")
    reference = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
    for seed, name in enumerate(("pirate", "sql")):
        config = {"r": 4, "target_modules": ["q_proj", "v_proj", "down_proj"]}
        train(reference, root / "adapters" / name, seed=seed, std=0.4, **config)
    (root / "adapters" / "sql" / "chat_template.jinja").write_text(TEMPLATE)
    return Made(model, root / "adapters")


@pytest.fixture(scope="module")
def server(made: Made) -> Iterator[RunningServer]:
    """A server that knows one of them from the start, and may load the other."""
    settings = Settings(
        reference=str(made.model),
        dtype="float32",
        adapters=(f"pirate={made.adapters / 'pirate'}",),
        adapter_root=str(made.adapters),
    )
    with serving(settings) as running:
        yield running


@pytest.fixture(scope="module")
def python(made: Made) -> Iterator[LocalModel]:
    with ostro.load(made.model, dtype="float32") as model:
        for name in ("pirate", "sql"):
            model.load_adapter(name, made.adapters / name)
        yield model


def load(server: RunningServer, name: str, path: str | None = None) -> Any:
    body = {"lora_name": name, "lora_path": path or name, "load_inplace": True}
    answer = server.post("/v1/load_lora_adapter", **body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def complete(server: RunningServer, **body: Any) -> str:
    answer = server.post(COMPLETE, prompt="hello again", **GREEDY, **body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def test_answers_are_those_of_python(server: RunningServer, python: LocalModel) -> None:
    load(server, "sql")
    mixed = {"pirate": 0.5, "sql": 0.7}
    asked = [{"name": name, "scale": scale} for name, scale in mixed.items()]
    expected = [
        python.generate("hello again", **GREEDY),
        python.generate("hello again", adapters=["pirate"], **GREEDY),
        python.generate("hello again", adapters=mixed, **GREEDY),
    ]
    bodies: list[dict[str, Any]] = [{}, {"model": "pirate"}, {"adapters": asked}]
    with ThreadPoolExecutor(3) as threads:
        futures = [threads.submit(complete, server, **body) for body in bodies]
        got = [each.result(60) for each in futures]
    assert got == expected and len(set(got)) == 3
    assert complete(server, model="base:pirate") == expected[1]


def test_generations_are_those_of_the_files(server: RunningServer, python: LocalModel) -> None:
    known = {facts.name: facts.generation for facts in python.adapters}
    answer = server.post(COMPLETE, prompt="a", model="base:pirate", **GREEDY).json()
    assert answer["model"] == "base:pirate"
    assert answer["adapter_generations"] == [known["pirate"]]
    again = complete(server, adapter={"generation": known["pirate"]})
    assert again == complete(server, model="pirate") != complete(server)
    cards = {card["id"]: card for card in server.get("/v1/models").json()["data"]}
    assert cards["pirate"]["parent"] == "base"
    listed = server.get("/v1/lora_adapters").json()["data"]
    pirate = next(each for each in listed if each["name"] == "pirate")
    assert pirate["generation"] == known["pirate"]
    assert (pirate["rank"], pirate["modules"], pirate["loaded"]) == (4, 6, True)
    assert pirate["bytes"] > 0 and pirate["effect"] > 0 and pirate["running"] == 0
    labels = f'adapter="pirate",generation="{known["pirate"]}",model="base"'
    metrics = server.get("/metrics").text
    assert f"ostro_adapter_requests_total{{{labels}}} {pirate['requests']}.0" in metrics
    assert f"ostro_adapter_resident{{{labels}}} 1.0" in metrics


def test_vectors_under_an_adapter(server: RunningServer, made: Made) -> None:
    def vector(**body: Any) -> torch.Tensor:
        answer = server.post("/v1/embeddings", input="hello world", **body)
        assert answer.status_code == 200, answer.text
        return torch.tensor(answer.json()["data"][0]["embedding"])

    with ostro.load(made.model, dtype="float32", task="embed") as model:
        model.load_adapter("pirate", made.adapters / "pirate")
        base = model.embed("hello world")[0]
        expected = model.embed("hello world", adapters=["pirate"])[0]
        half = model.embed("hello world", adapters={"pirate": 0.5})[0]
        assert [facts.requests for facts in model.adapters] == [2]
        model.unload_adapter("pirate")
        with pytest.raises(AdapterNotFound, match="pirate"):
            model.embed("hello world", adapters=["pirate"])
    asked = [{"name": "pirate", "scale": 0.5}]
    torch.testing.assert_close(vector(), base, atol=1e-5, rtol=0)
    torch.testing.assert_close(vector(model="pirate"), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(vector(adapters=asked), half, atol=1e-5, rtol=0)
    assert (base - expected).norm() > 0.01 < (half - expected).norm()


def test_the_chat_template_of_an_adapter_is_used(server: RunningServer, python: LocalModel) -> None:
    load(server, "sql")
    messages = [{"role": "user", "content": "the people"}]
    answer = server.post(CHAT, messages=messages, model="sql", **GREEDY).json()
    expected = python.generate("the way of the people", adapters=["sql"], **GREEDY)
    assert answer["choices"][0]["message"]["content"] == expected
    body = {"messages": messages, "adapters": ["sql", "pirate"], **GREEDY}
    both = server.post(CHAT, **body).json()["choices"][0]["message"]["content"]
    assert both == python.generate(messages, adapters=["sql", "pirate"], **GREEDY) != expected


def test_everything_else_works_under_adapters(server: RunningServer) -> None:
    known = {"logprobs": 1, "prompt_logprobs": 1, "echo": True}
    body = {"prompt": ["hello", "again"], "n": 2, **known, **GREEDY}
    mixed, plain = (server.post(COMPLETE, **body, model=m) for m in ("pirate", "base"))
    assert mixed.status_code == 200, mixed.text
    for mine, base in zip(mixed.json()["choices"], plain.json()["choices"], strict=True):
        assert mine["prompt_logprobs"][1:] != base["prompt_logprobs"][1:]
        assert mine["text"] != base["text"]


def test_a_restarted_engine_has_the_adapters(made: Made, tmp_path: Path) -> None:
    root = tmp_path / "adapters"
    shutil.copytree(made.adapters, root)
    for name in ("changed", "gone"):
        shutil.copytree(root / "pirate", root / name)
    settings = Settings(
        reference=str(made.model),
        dtype="float32",
        adapters=(f"pirate={root / 'pirate'}", f"gone={root / 'gone'}"),
        adapter_root=str(root),
    )
    with serving(settings, restart=True) as server:
        load(server, "changed")
        load(server, "pirate", path="sql")
        sql = complete(server, model="pirate")
        assert server.post("/v1/unload_lora_adapter", lora_name="gone").status_code == 200
        shutil.copytree(root / "sql", root / "changed", dirs_exist_ok=True)
        pid = server.server.engine.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 120
        while server.server.engine.pid == pid or server.get("/ready").status_code != 200:
            assert time.monotonic() < deadline, "it was not started again"
            time.sleep(0.05)
        assert complete(server, model="pirate") == sql != complete(server)
        changed, gone = (
            server.post(COMPLETE, prompt="a", model=name) for name in ("changed", "gone")
        )
        assert "have changed since" in changed.text and changed.status_code == 409
        assert gone.status_code == 404


def test_an_adapter_that_is_gone(server: RunningServer) -> None:
    generation = load(server, "sql")["generation"]
    path = "/v1/unload_lora_adapter"
    wrong = server.post(path, lora_name="sql", expected_generation="0" * 64)
    assert wrong.status_code == 409, wrong.text
    gone = server.post(path, lora_name="sql", expected_generation=generation)
    assert gone.status_code == 200, gone.text
    answer = server.post(COMPLETE, prompt="a", adapter="sql")
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "adapter_not_found"
    answer = server.post(COMPLETE, prompt="a", model="sql")
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "model_not_found"


def test_files_that_are_not_adapters_are_rejected(server: RunningServer, made: Made) -> None:
    (made.adapters / "empty").mkdir()
    body = {"lora_name": "empty", "lora_path": "empty"}
    answer = server.post("/v1/load_lora_adapter", **body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"]["code"] == "invalid_lora_adapter"
    assert str(made.adapters) not in answer.text
