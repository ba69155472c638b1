"""The catalogue: its page is current, and searches find classes or say what these need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostro.core.errors import ModelNotFound
from ostro.core.plugins.manager import PluginManager
from ostro.entrypoints.cli.catalogue import BODY, NATIVE, REFUSED, Row, catalogue, page, search

PAGE = Path(__file__).resolve().parents[3] / "docs" / "models.md"


@pytest.fixture(scope="module")
def rows(plugins: PluginManager) -> list[Row]:
    return catalogue(plugins)


def by_class(rows: list[Row], name: str) -> Row:
    return next(row for row in rows if row.cls == name)


def test_the_page_is_current(rows: list[Row]) -> None:
    assert PAGE.read_text("utf-8") == page(rows), "run `ostro models --into docs/models.md`"


def test_every_class_of_a_record_has_a_row(rows: list[Row], plugins: PluginManager) -> None:
    records = plugins.collect("architectures").values()
    expected = {(record.name, name) for record in records for name in record.classes}
    assert expected == {(r.architecture, r.cls) for r in rows if r.backend == NATIVE and r.cls}


def test_a_claimed_class_is_not_listed_as_a_body(rows: list[Row]) -> None:
    assert [row.backend for row in rows if row.cls == "LlamaForCausalLM"] == [NATIVE]


def test_a_row_of_a_plugin(rows: list[Row]) -> None:
    assert by_class(rows, "LlamaForCausalLM").plain() == {
        "class": "LlamaForCausalLM",
        "architecture": "llama",
        "model_type": "llama",
        "modality": ("text",),
        "gguf": ("llama",),
        "tasks": ("text", "embed"),
        "backend": NATIVE,
        "formats": "all",
        "adapters": True,
        "reference": "transformers:LlamaForCausalLM",
        "since": "0.1.0",
        "why": "",
    }


def test_rows_of_media_models_and_bodies(rows: list[Row]) -> None:
    assert by_class(rows, "Gemma3ForConditionalGeneration").modality == ("text", "image")
    assert by_class(rows, "Qwen2AudioForConditionalGeneration").modality == ("text", "audio")
    body = by_class(rows, "OPTForCausalLM")
    assert (body.backend, body.model_type, body.since) == (BODY, "opt", "0.2.0")
    refused = by_class(rows, "BloomForCausalLM")
    assert refused.backend == REFUSED and "attention interface" in refused.why
    assert not refused.tasks and not refused.since


def test_a_row_without_a_class_reads_gguf_files(rows: list[Row]) -> None:
    found = next(row for row in rows if row.architecture == "deepseek2")
    assert (found.cls, found.gguf) == ("", ("deepseek2",))


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("LlamaForCausalLM", "LlamaForCausalLM"),
        ("mixtral", "MixtralForCausalLM"),
        ("gpt-oss", "GptOssForCausalLM"),
        ("OPTFor*", "OPTForCausalLM"),
        ("bloom", "BloomForCausalLM"),
    ],
)
def test_a_search_finds_classes_types_and_gguf_names(
    pattern: str, name: str, rows: list[Row]
) -> None:
    assert name in [row.cls for row in search(rows, pattern)]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("LlamoForCausalLM", "nearest: .*LlamaForCausalLM"),
        ("NobodyForNothing", r"it needs a plugin \(`ostro plugin new NAME`\)"),
        ("Swinv2ForImageClassification", "--from transformers:Swinv2ForImageClassification"),
    ],
)
def test_an_unknown_class_names_what_it_needs(pattern: str, message: str, rows: list[Row]) -> None:
    with pytest.raises(ModelNotFound, match=message):
        search(rows, pattern)


def test_the_command_searches(ostro: Any) -> None:
    found = json.loads(ostro("models", "mixtral", "--json").out)
    assert [row["class"] for row in found] == ["MixtralForCausalLM"]
    assert "BloomForCausalLM" in ostro("models", "bloom").out
    missing = ostro("models", "LlamoForCausalLM")
    assert missing.code != 0 and "nearest: " in missing.err


def test_the_command_writes_the_page(ostro: Any, tmp_path: Path, rows: list[Row]) -> None:
    file = tmp_path / "models.md"
    assert ostro("models", "--into", str(file)).code == 0
    assert file.read_text("utf-8") == page(rows)
    refused = ostro("models", "llama", "--into", str(file))
    assert refused.code != 0 and "remove PATTERN" in refused.err


def test_json_has_the_catalogue(ostro: Any, rows: list[Row]) -> None:
    found = json.loads(ostro("models", "--json").out)["models"]
    assert found == json.loads(json.dumps([row.plain() for row in rows]))
