"""Files of llama.cpp's quantizer match llama.cpp; needs its checkout and environment."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))

import quantized
from converter import CHECKOUT, find_checkout, find_python
from gguf import GGUFReader
from quantized import FORMATS, Outcome, cases, find_llama, run

from ostro.core.plugins.manager import PluginManager

pytestmark = [pytest.mark.peer, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def checkout() -> Path:
    found = find_checkout(None)
    if found is None:
        pytest.skip(f"{CHECKOUT} names no checkout of llama.cpp")
    if not find_llama().exists():
        pytest.skip(f"there is no {find_llama()}; environments.py makes it")
    return found


@pytest.mark.parametrize("name", cases())
def test_its_files_say_what_it_says(name: str, checkout: Path, plugins: PluginManager) -> None:
    outcomes = dict(run(name, list(FORMATS), checkout, find_python(), plugins))
    if "No module named" in outcomes.get("", Outcome()).said:
        pytest.skip(outcomes[""].said)
    bad = {format: str(outcome) for format, outcome in outcomes.items() if not outcome.good}
    assert not bad and outcomes.keys() == FORMATS.keys()


OTHERWISE = ("gpt-oss", "deepseek v2", "deepseek v2 lite", "text of qwen2.5 vl", "text of qwen3 vl")


@pytest.mark.parametrize("name", [*OTHERWISE, *quantized.UNSAID, "t5 encoder"])
def test_known_differences_from_llama_cpp_still_exist(
    name: str, checkout: Path, plugins: PluginManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reasons for `WIDE`, `UNSAID` and `tabled`; an entry whose test fails can be removed."""
    monkeypatch.setattr(quantized, "WIDE", {})
    monkeypatch.setattr(quantized, "GELU", ())
    [(_, outcome)] = run(name, ["Q8_0"], checkout, find_python(), plugins)
    theirs = outcome.own <= quantized.SAME and outcome.floats > 2 * quantized.BAR
    assert theirs or "llama.cpp: " in outcome.said


@pytest.fixture
def damaged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Double one scale of the quantized file after llama.cpp has read it."""
    ask = quantized.ask

    def change(source: Path, format: str, folder: Path, *rest: Any) -> Any:
        theirs = ask(source, format, folder, *rest)
        reader = GGUFReader(folder / "model.gguf", "r+")
        [down] = [tensor for tensor in reader.tensors if tensor.name == "blk.1.ffn_down.weight"]
        down.data[0, :2].view("float16")[:] *= 2
        reader.data.flush()
        return theirs

    monkeypatch.setattr(quantized, "ask", change)
    yield


@pytest.mark.usefixtures("damaged")
def test_a_wrong_scale_is_detected(checkout: Path, plugins: PluginManager) -> None:
    [(_, outcome)] = run("llama", ["Q8_0"], checkout, find_python(), plugins)
    assert outcome.own > 2 * quantized.SAME and outcome.floats > 2 * quantized.BAR
    assert not outcome.good
