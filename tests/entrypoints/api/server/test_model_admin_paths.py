"""Fields of the routes that load models name no file of the server: with a model in its process."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tiny.model import make_model
from tiny.pipes import pipe
from tiny.server import RunningServer, serving

from ostro.core.settings import Settings

pytestmark = pytest.mark.process

CANARY = "a-secret-of-the-server"
OPTIONS = ("quant", "topology", "memory", "kv_dtype", "dtype")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and adapters below the root: one model of each name, a link, a pipe, a folder."""
    root = tmp_path_factory.mktemp("root")
    make_model(root / "one")
    shutil.copytree(root / "one", root / "piped")
    return root


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[RunningServer]:
    settings = Settings(
        reference=str(root / "one"),
        name="one",
        context=64,
        memory="4MB",
        adapter_root=str(root),
    )
    with serving(settings, admin_key="admin", model_root=str(root)) as server:
        yield server


def post(server: RunningServer, path: str, **body: Any) -> httpx.Response:
    headers = {"Authorization": "Bearer admin"}
    return httpx.post(server.url + path, json=body, headers=headers, timeout=60)


def requests(value: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The requests that have a value in one of the fields."""
    for option in OPTIONS:
        yield "/v1/models/load", {"model": "new", "reference": "one", option: value}
    for field in ("quant", "topology"):
        yield "/v1/models/one/requantize", {field: value}
    yield "/re_isq", {"ggml_type": value}
    yield "/v1/models/load", {"model": "new", "reference": value}
    for route in ("load", "reload", "unload"):
        yield f"/v1/models/{route}", {"model": value}
    yield "/v1/load_lora_adapter", {"lora_name": "new", "lora_path": value}
    for field in ("lora_name", "model"):
        body = {"lora_name": "new", "lora_path": "one", field: value}
        yield "/v1/load_lora_adapter", body
    yield "/v1/unload_lora_adapter", {"lora_name": value}


@pytest.mark.parametrize(
    "content", [f'{CANARY} = "x"', f'"*" = "{CANARY}"', f"{CANARY}\n", f"[[{CANARY}]]\nx = 1"]
)
def test_a_file_of_the_server_is_not_read(
    server: RunningServer, tmp_path: Path, content: str
) -> None:
    (tmp_path / "file.toml").write_text(content)
    for path, body in requests(str(tmp_path / "file.toml")):
        response = post(server, path, **body)
        assert 400 <= response.status_code < 500, (path, body, response.text)
        assert CANARY not in response.text, (path, body)


def test_whether_a_file_exists_is_not_shown(server: RunningServer, tmp_path: Path) -> None:
    def answers() -> list[tuple[int, str]]:
        given = requests(str(tmp_path / "file"))
        responses = [post(server, path, **body) for path, body in given]
        return [(response.status_code, response.text) for response in responses]

    missing = answers()
    (tmp_path / "file").write_text(CANARY)
    assert answers() == missing


def test_a_pipe_is_not_opened(server: RunningServer, tmp_path: Path, root: Path) -> None:
    for path, body in requests(str(tmp_path / "pipe")):
        with pipe(tmp_path / "pipe"):
            assert 400 <= post(server, path, **body).status_code < 500
    with pipe(root / "piped" / "config.json"):
        broken = post(server, "/v1/models/load", model="new", reference="piped")
        assert broken.status_code == 422 and "config.json: not a regular" in broken.text
    loaded = post(server, "/v1/models/load", model="new", reference="one")
    assert loaded.status_code == 200, loaded.text


def test_rules_and_not_paths_are_a_topology(server: RunningServer) -> None:
    for path in ("", ".", "rules.toml", "/dev/zero", "~/x", "file:///etc/passwd", "x" * 10_000):
        for route, body in requests(path):
            if "topology" in body:
                refused = post(server, route, **body)
                assert refused.status_code == 400, refused.text
                error = refused.json()["error"]
                assert error["param"] == "topology" and "write PATTERN = FORMAT" in error["message"]
                assert "only on the command line" in error["message"]
                assert len(error["message"]) < 400
    rules = {"topology": "lm_head = q8_0, *.down_proj = q4_0", "quant": "q8_0"}
    assert post(server, "/v1/models/one/requantize", **rules).status_code == 200
    wrong = post(server, "/v1/models/one/requantize", topology="lm_head = /etc/passwd")
    assert wrong.status_code == 400 and "unknown format" in wrong.text


def test_an_adapter_that_is_a_pipe_delays_no_other(
    server: RunningServer, root: Path, tmp_path: Path
) -> None:
    (root / "adapter").mkdir()
    for _ in range(3):
        with pipe(root / "adapter" / "adapter_config.json"):
            load = {"lora_name": "piped", "lora_path": "adapter"}
            refused = post(server, "/v1/load_lora_adapter", **load)
            assert refused.status_code == 422, refused.text
            assert "adapter_config.json cannot be read: not a regular file" in refused.text
    os.remove(root / "adapter" / "adapter_config.json")
    missing = post(server, "/v1/load_lora_adapter", lora_name="piped", lora_path="adapter")
    assert missing.status_code == 422 and "no installed plugin reads" in missing.text
