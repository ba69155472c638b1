"""What the headers of a model's files state."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny.model import CONFIG, make_gguf
from tiny.turns import OWN

from ostro import Parser, Pipeline, hookimpl
from ostro.core.errors import PluginError
from ostro.core.pipeline import CheckpointSummary
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import TensorInfo
from ostro.core.settings import Settings
from ostro.entrypoints.open import check_parsers, find_model, make_pipelines, summary_of

GPTQ = {"quantization_config": {"quant_method": "gptq"}}


def tensor(name: str, shape: tuple[int, ...], format: str, nbytes: int) -> TensorInfo:
    return TensorInfo(name=name, shape=shape, format=format, nbytes=nbytes)


WEIGHT = tensor("weight", (4, 32), "Q4_K", 72)
NORM = tensor("norm", (32,), "F32", 128 // 4)
PACKED = tensor("qweight", (4, 4), "I32", 64)


@pytest.mark.parametrize(
    ("tensors", "raw", "quant", "quantization", "parameters"),
    [
        ([WEIGHT, NORM], {}, None, "Q4_K", 160),
        ([WEIGHT, NORM], {}, "Q8_0", "Q8_0", 160),
        ([PACKED, NORM], GPTQ, None, "gptq", None),
        ([], {}, None, "", 0),
    ],
)
def test_summary(
    tensors: list[TensorInfo],
    raw: dict[str, Any],
    quant: str | None,
    quantization: str,
    parameters: int | None,
    tmp_path: Path,
) -> None:
    container: Any = SimpleNamespace(
        path=tmp_path, tensors={each.name: each for each in tensors}, metadata={}
    )
    nbytes = sum(each.nbytes for each in tensors)
    expected = CheckpointSummary(
        format="safetensors", nbytes=nbytes, quantization=quantization, parameters=parameters
    )
    summary = summary_of(container, raw, Settings(quant=quant))
    assert replace(summary, digest="") == expected
    container.path = tmp_path / "m.gguf"
    container.path.touch()
    assert summary_of(container, raw, Settings(quant=quant)).format == "gguf"


def test_the_header_of_a_gguf_file_has_the_sizes(tmp_path: Path, second: PluginManager) -> None:
    """The config is not read, since this needs torch, which a server imports in the engine only."""
    model = find_model(Settings(reference=str(make_gguf(tmp_path / "m.gguf"))), second)
    assert model.raw_config == {} and model.checkpoint is not None
    sizes = model.checkpoint.sizes
    assert sizes["embedding_length"] == CONFIG["hidden_size"]
    assert sizes["block_count"] == CONFIG["num_hidden_layers"]
    assert sizes["attention.head_count"] == CONFIG["num_attention_heads"]


@pytest.mark.parametrize("inner", ["", "text_config"])
def test_a_config_has_the_sizes(tmp_path: Path, inner: str) -> None:
    container: Any = SimpleNamespace(path=tmp_path, tensors={}, metadata={})
    config = {"hidden_size": 64, "num_hidden_layers": "many", "vocab_size": 9}
    sizes = summary_of(container, {inner: config} if inner else config, Settings()).sizes
    assert sizes == {"embedding_length": 64, "vocab_size": 9}


def test_digests_of_files(tmp_path: Path) -> None:
    """They change with what is loaded, and neither with the folder nor with hidden files."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"x")
        os.utime(folder / "model.safetensors", ns=(0, 10**18))

    def digest(path: Path = first, weight: TensorInfo = WEIGHT, quant: str | None = None) -> str:
        container: Any = SimpleNamespace(path=path, tensors={weight.name: weight}, metadata={})
        return summary_of(container, {}, Settings(quant=quant)).digest

    before = digest()
    assert re.fullmatch("[0-9a-f]{64}", before) and digest() == digest(second) == before
    assert digest(first / "model.safetensors") == before
    (first / ".cache").touch()
    assert digest() == before
    changed = [digest(quant="Q8_0"), digest(weight=tensor("weight", (8, 16), "Q4_K", 72))]
    os.utime(first / "model.safetensors", ns=(0, 2 * 10**18))
    changed.append(digest())
    (first / "model.safetensors").write_bytes(b"xy")
    os.utime(first / "model.safetensors", ns=(0, 10**18))
    changed.append(digest())
    assert len({before, *changed}) == 5


class Second:
    """A plugin with a pipeline and a parser beside the built-in ones."""

    @hookimpl
    def ostro_pipelines(self) -> Any:
        yield Pipeline(name="mine", task="embed", pipeline="x:Y")

    @hookimpl
    def ostro_parsers(self) -> Any:
        yield Parser(name="hermes", matches=lambda source: "[[" in source, parser="x:Y")
        yield Parser(name="mine", matches=lambda source: "[[" in source, parser="x:Y")


@pytest.fixture
def second() -> PluginManager:
    plugins = PluginManager()
    plugins.load()
    plugins.register(Second(), "second")
    return plugins


def test_a_second_pipeline_of_a_task_is_a_conflict(second: PluginManager) -> None:
    model: Any = SimpleNamespace(tasks=("embed",))
    with pytest.raises(PluginError, match=r"the task 'embed' is .*built in.* and second"):
        make_pipelines(model, None, second)  # type: ignore[arg-type]
    infos = {each.name: each for each in second.describe()}
    assert "the task 'embed'" in infos["second"].reason


@pytest.mark.parametrize(
    ("options", "template", "match"),
    [
        ({"tool_parser": "hermes"}, None, "parsers: 'hermes' is claimed by .* and second"),
        ({"reasoning_parser": "hermes"}, None, "parsers: 'hermes' is claimed by .* and second"),
        ({}, "[[", "the chat template is claimed by second .*--tool-parser: hermes, mine"),
        ({"tool_parser": "none"}, "[[", "the chat template is claimed by second"),
        ({"tool_parser": "mine"}, "[[", None),
        ({"tool_parser": "none", "reasoning_parser": "none"}, "[[", None),
        ({}, "plain", None),
    ],
)
def test_parsers_in_conflict_are_named_at_start(
    second: PluginManager, options: dict[str, Any], template: str | None, match: str | None
) -> None:
    source = None if template is None else SimpleNamespace(source=template)
    model: Any = SimpleNamespace(settings=Settings(**options), template=source)
    if match is None:
        check_parsers(model, second)
        return
    with pytest.raises(PluginError, match=match):
        check_parsers(model, second)


class Third:
    """A plugin with a parser that matches every template."""

    def __init__(self, precedence: int) -> None:
        self.precedence = precedence

    @hookimpl
    def ostro_parsers(self) -> Any:
        def matches(source: str) -> bool:
            return True

        yield Parser(name="third", matches=matches, parser="x:Y", precedence=self.precedence)


@pytest.mark.parametrize(("precedence", "conflict"), [(-9, False), (9, False), (0, True)])
def test_only_parsers_of_the_highest_precedence_are_in_conflict(
    precedence: int, conflict: bool
) -> None:
    plugins = PluginManager()
    plugins.load()
    plugins.register(Third(precedence), "third")
    template = SimpleNamespace(source=OWN["own-mistral"])
    matched = {x.name for x in plugins.collect("parsers").values() if x.matches(template.source)}
    assert matched == {"mistral", "mistral_named", "third"}
    model: Any = SimpleNamespace(settings=Settings(), template=template)
    if not conflict:
        check_parsers(model, plugins)
        return
    with pytest.raises(PluginError, match=r"claimed by \S*mistral_named \(built in\) and third"):
        check_parsers(model, plugins)


class Exits:
    """A plugin with a parser whose `matches` ends the process."""

    @hookimpl
    def ostro_parsers(self) -> Any:
        def matches(source: str) -> bool:
            raise SystemExit(3)

        yield Parser(name="exits", matches=matches, parser="x:Y")


def test_a_parser_that_raises_at_start_is_left_out() -> None:
    plugins = PluginManager()
    plugins.load()
    plugins.register(Exits(), "exits")
    model = find_model(Settings(reference="starter"), plugins)
    assert "exits" not in model.parsers and "hermes" in model.parsers
    assert "sys.exit(3)" in plugins.broken["exits"].reason


def test_a_model_whose_parser_is_in_conflict_is_refused(second: PluginManager) -> None:
    with pytest.raises(PluginError, match="parsers: 'hermes' is claimed by"):
        find_model(Settings(reference="starter", tool_parser="hermes"), second)
