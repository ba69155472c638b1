"""Adapters over HTTP: loading and unloading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny.adapter_routes import COMPLETE, GENERATION, LIST, LOAD, UNLOAD, load, refused


def test_an_adapter_is_loaded_and_unloaded(server: Any, root: Path) -> None:
    info = load(server, "sql", pinned=True)
    assert info["name"] == "sql" and info["rank"] == 8 and info["pinned"] is True
    assert server.complete(model="sql").status_code == 200
    listed = server.http.get(LIST)
    assert listed.json()["data"] == [{**info, "requests": 1}]
    assert str(root) not in listed.text
    answer = server.post(UNLOAD, lora_name="sql", lora_int_id=7)
    assert answer.json() == {"name": "sql", "model": "echo", "unloaded": True}
    assert server.http.get(LIST).json()["data"] == []
    assert not server.service.adapters.templates
    refused(server.complete(model="sql"), 404, "model_not_found")
    refused(server.post(UNLOAD, lora_name="sql"), 404, "adapter_not_found")


def test_a_name_that_is_taken(server: Any) -> None:
    first = load(server, "sql")
    again = {"lora_name": "sql", "lora_path": "style"}
    refused(server.post(LOAD, **again), 409, "adapter_conflict", "lora_name")
    assert server.http.get(LIST).json()["data"][0]["generation"] == first["generation"]
    assert load(server, "sql", "style", load_inplace=True)["generation"] != first["generation"]


@pytest.mark.parametrize("inplace", [False, True])
def test_another_generation_than_expected(server: Any, inplace: bool) -> None:
    generation = load(server, "sql")["generation"]
    wrong = {"lora_name": "sql", "expected_generation": GENERATION}
    if inplace:
        body = {**wrong, "lora_path": "style", "load_inplace": True}
        refused(server.post(LOAD, **body), 409, "adapter_conflict")
        assert server.post(LOAD, **{**body, "expected_generation": generation}).status_code == 200
    else:
        refused(server.post(UNLOAD, **wrong), 409, "adapter_conflict")
        right = {**wrong, "expected_generation": generation}
        assert server.post(UNLOAD, **right).status_code == 200


def test_while_another_is_loaded(server: Any) -> None:
    answer = server.post(LOAD, lora_name="busy", lora_path="sql")
    refused(answer, 429, "lora_load_busy")
    assert answer.headers["retry-after"]
    load(server, "sql")


def test_unloading_what_is_in_use(server: Any) -> None:
    load(server, "sql")
    server.echo.step_seconds = 0.01
    body = {"prompt": "abc", "model": "sql", "max_tokens": 30, "ignore_eos": True, "stream": True}
    try:
        with server.http.stream("POST", COMPLETE, json=body) as response:
            lines = (line for line in response.iter_lines() if line.startswith("data: {"))
            next(lines)
            assert server.post(UNLOAD, lora_name="sql").status_code == 200
            refused(server.complete(model="sql"), 404, "model_not_found")
            ended = [json.loads(line[6:]) for line in lines][-1]
    finally:
        server.echo.step_seconds = 0
    assert ended["choices"][0]["finish_reason"] == "length" and ended["adapter_generations"]


@pytest.mark.parametrize(
    "path",
    [
        "/etc",
        "../secret",
        "sql/../../secret",
        "../root2/sql",
        "link",
        "link/inner",
        "loop",
        "holed",
        ".",
        "",
        "/",
        "..",
        "~",
        "x" * 1_000_000,
        "../" * 1000,
    ],
)
def test_paths_out_of_the_root(server: Any, root: Path, path: str) -> None:
    answer = server.post(LOAD, lora_name="bad", lora_path=path)
    if path == "~":  # a name like any other here, and nobody's home
        refused(answer, 404, "adapter_not_found", "lora_path")
    else:
        refused(answer, 403, "adapter_path_forbidden", "lora_path")
    assert str(root) not in answer.text and "secret/" not in answer.text
    assert len(answer.text) < 1000
    assert not server.echo.adapters
    load(server, "bad", "sql")


@pytest.mark.parametrize("path", ["sql", "./sql", "style/../sql", "inner", "{root}/sql"])
def test_paths_within_the_root(server: Any, root: Path, path: str) -> None:
    load(server, "good", path.format(root=root))
    assert server.echo.adapters["good"].reference == str(root / "sql")


@pytest.mark.parametrize("path", ["nothing", "x" * 300, "sql/adapter_config.json/x"])
def test_missing_paths_are_rejected(server: Any, path: str) -> None:
    answer = server.post(LOAD, lora_name="bad", lora_path=path)
    refused(answer, 404, "adapter_not_found", "lora_path")


def test_errors_do_not_contain_the_adapter_root(server: Any, root: Path) -> None:
    answer = server.post(LOAD, lora_name="bad", lora_path="broken")
    message = refused(answer, 422, "invalid_lora_adapter")
    assert message == "broken: nothing that can be read" and str(root) not in answer.text


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("a/b", "invalid_lora_name"),
        ("", "invalid_lora_name"),
        ("x" * 129, "invalid_lora_name"),
        ("x" * 1_000_000, "invalid_lora_name"),
        ("a\nb", "invalid_lora_name"),
        ("a\0b", "invalid_request_error"),
        (7, "invalid_request_error"),
    ],
)
def test_invalid_names_are_rejected(server: Any, name: Any, code: str) -> None:
    answer = server.post(LOAD, lora_name=name, lora_path="sql")
    refused(answer, 400, code)
    assert len(answer.text) < 1000
    load(server, "x" * 128, "sql")


def test_a_path_with_nul(server: Any) -> None:
    answer = server.post(LOAD, lora_name="bad", lora_path="sql\0")
    refused(answer, 400, "invalid_request_error")


def test_misspelled_fields_are_not_dropped(server: Any) -> None:
    body = {"lora_name": "a", "lora_path": "sql", "inplace": True}
    refused(server.post(LOAD, **body), 400, "invalid_request_error", "inplace")
    refused(server.post(LOAD, lora_name="a"), 400, "invalid_request_error", "lora_path")
    body = {"lora_name": "a", "lora_path": "sql", "model": "other"}
    refused(server.post(LOAD, **body), 404, "model_not_found", "model")
