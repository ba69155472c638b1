"""Escapes control tokens in messages, so that only a chat template can write them.

Before rendering, every character of a message that could begin a control token is replaced by a
private-use character. Control tokens in the rendered text therefore come from the template. The
text is split at them, and the original characters are restored in the parts between. This also
covers control tokens that would be assembled from parts of several messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from ostro.core.errors import RequestError

PLACEHOLDERS = range(0xE000, 0xF900)
"""The private-use characters of the Basic Multilingual Plane."""


class ControlTokenEscaper:
    """Replaces the first characters of control tokens in a conversation, and restores them.

    controls: the texts of control tokens. looked_for: the template's string constants, such as
    "</think>"; they are not escaped unless they are control tokens, so that the template still
    finds them in messages. data: the conversation, to choose unused private-use characters.
    """

    def __init__(self, controls: Iterable[str], looked_for: Iterable[str], data: Any) -> None:
        controls = sorted(filter(None, controls), key=len, reverse=True)
        marks = {text[0] for text in controls if not (text[0].isalnum() or text[0].isspace())}
        kept = [
            text
            for text in looked_for
            if text[:1] in marks and not any(control.startswith(text) for control in controls)
        ]
        self._escapes = _placeholders({text[0] for text in controls}, data)
        self._originals = {placeholder: mark for mark, placeholder in self._escapes.items()}
        # A template may write a placeholder as an escape: JSON in ASCII, or Python's repr.
        self._originals |= {f"\\u{ord(s):04x}": mark for s, mark in list(self._originals.items())}
        branches = []
        if controls:
            branches.append(f"(?={_either(controls)}).")
        if marks:
            unless = f"(?!{_either(kept)})" if kept else ""
            branches.append(f"{unless}{_either(sorted(marks))}")
        self._begin = re.compile("|".join(branches), re.DOTALL) if branches else None
        # A set of characters is searched many times faster than the alternatives of `_begin`, and
        # the call back into Python lets other threads run.
        self._first = re.compile(_either(sorted(self._escapes))) if controls else None
        self._placeholder = re.compile(_either(self._originals)) if self._originals else None

    def escape(self, value: Any) -> Any:
        """Escape every string of a JSON value, including the names of fields."""
        if isinstance(value, str):
            return value if self._first is None else self._first.sub(self._escape_match, value)
        if isinstance(value, dict):
            return {self.escape(key): self.escape(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.escape(item) for item in value]
        return value

    def _escape_match(self, match: re.Match[str]) -> str:
        assert self._begin is not None, "there are control tokens"
        begins = self._begin.match(match.string, match.start())
        return self._escapes[match[0]] if begins else match[0]

    def restore(self, text: str) -> str:
        """Replace the placeholders in a text by the original characters."""
        if self._placeholder is None:
            return text
        return self._placeholder.sub(lambda match: self._originals[match[0]], text)


def _either(texts: Iterable[str]) -> str:
    return f"(?:{'|'.join(re.escape(text) for text in texts)})"


def _placeholders(marks: Iterable[str], data: Any) -> dict[str, str]:
    """Choose a private-use character that the data does not contain for each mark."""
    used = msgspec.json.encode(data).decode()
    free = (c for c in map(chr, PLACEHOLDERS) if c not in used and f"\\u{ord(c):04x}" not in used)
    marks = sorted(marks)
    chosen = dict(zip(marks, free, strict=False))
    if len(chosen) < len(marks):
        raise RequestError("the messages contain too many private-use characters")
    return chosen
