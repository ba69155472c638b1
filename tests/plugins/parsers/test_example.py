"""The parser in docs/hooks.md: one file, which reads its notation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from tiny.turns import Output, Turn, cuts, parse

from ostro.core.output import Piece
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Parser, resolve
from ostro.core.settings import Settings

PAGE = Path(__file__).resolve().parents[3] / "docs" / "hooks.md"
TEXT = 'See [1]. [[weather {"city": "Bonn"}]] and [[get_time {}]]. ['


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    section = PAGE.read_text().partition("\n### Parser\n")[2].partition("\n### ")[0]
    [source] = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    file = tmp_path_factory.mktemp("plugins") / "brackets_parser.py"
    file.write_text(source)
    return file


@pytest.fixture(scope="module")
def records(plugin: Path) -> Mapping[str, Parser]:
    plugins = PluginManager()
    plugins.load(Settings(), [plugin])
    return plugins.collect("parsers")


def test_the_example_reads_its_notation(records: Mapping[str, Parser]) -> None:
    record = records["brackets"]
    assert record.matches("{{ '[[' }} {{ ']]' }}") and not record.matches("<tool_call>")
    calls = (("weather", {"city": "Bonn"}), ("get_time", {}))
    output = Output("", (Piece(TEXT),))
    for cut in [output, *cuts(output)]:
        found = parse(resolve(record.parser), cut)
        assert found.turn == Turn("See [1].  and . [", "", calls)
    assert parse(resolve(record.parser), output, ()).text == TEXT
