"""Stop strings in streamed text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

MARKS = range(0xD800, 0xE000)
"""Surrogates, which text does not contain: each stands for one control token."""


class Stop:
    """Cuts streamed text at the first stop string.

    Text that may be the beginning of a stop string is held back. found: the stop string, None until
    it occurs. keep: include the stop string in the text. controls: the control tokens of the
    vocabulary; those that occur in stop strings match there as tokens and as text, and other
    strings match text only.
    """

    def __init__(
        self, strings: Sequence[str], *, keep: bool = False, controls: Iterable[str] = ()
    ) -> None:
        self.strings = strings
        self.keep = keep
        self.found: str | None = None
        named = {text for text in controls if text and any(text in each for each in strings)}
        longest_first = sorted(named, key=lambda text: (-len(text), text))
        self._marks = dict(zip(longest_first, map(chr, MARKS), strict=False))
        self._searched = {each: each for each in strings}
        self._searched |= {self._marked(each): each for each in strings}
        self._hidden = dict.fromkeys(map(ord, self._marks.values()))
        self._held = ""

    @property
    def controls(self) -> Iterable[str]:
        """The control tokens in stop strings."""
        return self._marks.keys()

    def add(self, text: str, control: str = "") -> str:
        """Add a piece, text or a control token in `controls`.

        Returns the text that is certain to precede any stop string.
        """
        if self.found is not None:
            return ""
        text, self._held = self._held + text + self._marks.get(control, ""), ""
        hits = [(at, s) for s in self._searched if (at := text.find(s)) >= 0]
        if hits:
            at, searched = min(hits)
            self.found = self._searched[searched]
            return self._visible(text[:at]) + self.found * self.keep
        hold = max((self._overlap(text, s) for s in self._searched), default=0)
        cut = len(text) - hold
        self._held = text[cut:]
        return self._visible(text[:cut])

    def rest(self) -> str:
        """Return the text held back, after the answer has ended without a stop string."""
        text, self._held = self._held, ""
        return self._visible(text)

    def _marked(self, string: str) -> str:
        """A stop string with marks in the places of its control tokens."""
        if not self._marks:
            return string
        either = "|".join(map(re.escape, self._marks))
        return re.sub(either, lambda match: self._marks[match[0]], string)

    def _visible(self, text: str) -> str:
        """Text without marks."""
        return text.translate(self._hidden) if self._hidden else text

    @staticmethod
    def _overlap(text: str, string: str) -> int:
        """Length of the longest suffix of `text` that is a proper prefix of `string`."""
        at = text.find(string[0], max(0, len(text) - len(string) + 1))
        while at >= 0:
            if string.startswith(text[at:]):
                return len(text) - at
            at = text.find(string[0], at + 1)
        return 0
