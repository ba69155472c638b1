"""Finds stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class Stop:
    """Passes text on up to the first stop string; holds back what may be the beginning of one.

    `found` is the stop string that has come, else None. With `keep` it stays in the text.
    """

    def __init__(self, strings: Sequence[str], *, keep: bool = False) -> None:
        self.strings = strings
        self.keep = keep
        self.found: str | None = None
        self._held = ""

    def add(self, text: str) -> str:
        """Take a piece in and give what is certain to belong to the answer."""
        if self.found is not None:
            return ""
        text, self._held = self._held + text, ""
        hits = [(at, s) for s in self.strings if (at := text.find(s)) >= 0]
        if hits:
            at, self.found = min(hits)
            return text[: at + len(self.found) * self.keep]
        hold = max((self._overlap(text, s) for s in self.strings), default=0)
        cut = len(text) - hold
        self._held = text[cut:]
        return text[:cut]

    def rest(self) -> str:
        """Give what is still held back: the answer has ended without a stop string."""
        text, self._held = self._held, ""
        return text

    @staticmethod
    def _overlap(text: str, string: str) -> int:
        """Length of the longest end of `text` that is a proper beginning of `string`."""
        at = text.find(string[0], max(0, len(text) - len(string) + 1))
        while at >= 0:
            if string.startswith(text[at:]):
                return len(text) - at
            at = text.find(string[0], at + 1)
        return 0
