"""A parser of a plugin that returns something else than events is named by its class."""

from __future__ import annotations

from typing import Any

import pytest

from ostro.core.errors import PluginError
from ostro.core.messages.text import Text, ToolCallEnd
from ostro.core.output import Piece
from ostro.plugins.pipelines.text.parsing import CheckedParser

RESULTS: dict[str, tuple[Any, str]] = {
    "none": (None, "NoneType"),
    "text": ("text", "str"),
    "an event": (Text(text="a"), "Text"),
    "texts": ([Text(text="a"), "b"], "list of Text, str"),
}


class Wrong:
    """A parser that returns the text of a piece's result by name."""

    reasoning = None

    def __init__(self, *arguments: Any) -> None: ...

    def add(self, piece: Piece) -> Any:
        return RESULTS[piece.text][0]

    def finish(self) -> Any:
        return {}


def parser() -> CheckedParser:
    kind: Any = Wrong
    return CheckedParser(kind, "", (), frozenset())


@pytest.mark.parametrize("name", RESULTS)
def test_a_wrong_result_names_the_class(name: str) -> None:
    with pytest.raises(PluginError) as raised:
        parser().add(Piece(name))
    assert str(raised.value) == (
        f"the parser {__name__}:Wrong returned {RESULTS[name][1]} from add, expected a list of "
        "events; select another one with --tool-parser"
    )
    with pytest.raises(PluginError, match="returned dict from finish"):
        parser().finish()


def test_events_are_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [Text(text="a"), ToolCallEnd(call=0)]
    monkeypatch.setitem(RESULTS, "right", (events, ""))
    assert parser().add(Piece("right")) is events
