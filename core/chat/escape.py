"""Keeps text from outside apart from control tokens while a template mixes the two.

In the strings of a conversation every character that could begin a control token is replaced by
a private-use character, one for one; what the template itself writes is left alone. After
rendering, whatever still reads as a control token was written by the template, and the stand-ins
are turned back into the text they stand for. So neither a whole control token in a message, nor
one that would only be put together out of several messages, becomes a control id.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from ostro.core.errors import RequestError

STAND_INS = range(0xE000, 0xF900)
"""The private-use characters of the basic plane."""


class ControlTokenEscaper:
    """Hides the beginnings of control tokens in a conversation, and reveals them afterwards.

    Strings that the template itself looks for in messages (`looked_for`, as "</think>") stay as
    they are unless they are control tokens, so that it still finds them.
    """

    def __init__(self, controls: Iterable[str], looked_for: Iterable[str], data: Any) -> None:
        controls = sorted(filter(None, controls), key=len, reverse=True)
        marks = {text[0] for text in controls if not (text[0].isalnum() or text[0].isspace())}
        kept = [
            text
            for text in looked_for
            if text[:1] in marks and not any(control.startswith(text) for control in controls)
        ]
        self._hidden = _stand_ins({text[0] for text in controls}, data)
        self._shown = {stand_in: mark for mark, stand_in in self._hidden.items()}
        # Other programs' escapes of a stand-in, as JSON in ASCII and Python's repr write it.
        self._shown |= {f"\\u{ord(s):04x}": mark for s, mark in list(self._shown.items())}
        branches = []
        if controls:
            branches.append(f"(?={_either(controls)}).")
        if marks:
            unless = f"(?!{_either(kept)})" if kept else ""
            branches.append(f"{unless}{_either(sorted(marks))}")
        self._begin = re.compile("|".join(branches), re.DOTALL) if branches else None
        # A set of characters is searched many times faster than the alternatives of `_begin`, and
        # the call back into Python lets other threads run.
        self._first = re.compile(_either(sorted(self._hidden))) if controls else None
        self._stand_in = re.compile(_either(self._shown)) if self._shown else None

    def hide(self, value: Any) -> Any:
        """Replace the marks in every string of a JSON value, also in the names of fields."""
        if isinstance(value, str):
            return value if self._first is None else self._first.sub(self._hide, value)
        if isinstance(value, dict):
            return {self.hide(key): self.hide(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.hide(item) for item in value]
        return value

    def _hide(self, match: re.Match[str]) -> str:
        assert self._begin is not None, "there are control tokens"
        begins = self._begin.match(match.string, match.start())
        return self._hidden[match[0]] if begins else match[0]

    def reveal(self, text: str) -> str:
        """Put the marks back."""
        if self._stand_in is None:
            return text
        return self._stand_in.sub(lambda match: self._shown[match[0]], text)


def _either(texts: Iterable[str]) -> str:
    return f"(?:{'|'.join(re.escape(text) for text in texts)})"


def _stand_ins(marks: Iterable[str], data: Any) -> dict[str, str]:
    """Choose a private-use character for each mark that occurs nowhere in the data."""
    used = msgspec.json.encode(data).decode()
    free = (c for c in map(chr, STAND_INS) if c not in used and f"\\u{ord(c):04x}" not in used)
    marks = sorted(marks)
    chosen = dict(zip(marks, free, strict=False))
    if len(chosen) < len(marks):
        raise RequestError("the messages use every private-use character of Unicode")
    return chosen
