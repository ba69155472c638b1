"""Stop strings in streamed text."""

from __future__ import annotations

from collections.abc import Sequence


class Stop:
    """Cuts streamed text at the first stop string.

    Text that may be the beginning of a stop string is held back. found: the stop string, None until
    it occurs. keep: include the stop string in the text.
    """

    def __init__(self, strings: Sequence[str], *, keep: bool = False) -> None:
        self.strings = strings
        self.keep = keep
        self.found: str | None = None
        self._held = ""

    def add(self, text: str) -> str:
        """Add a piece and return the text that is certain to precede any stop string."""
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
        """Return the text held back, after the answer has ended without a stop string."""
        text, self._held = self._held, ""
        return text

    @staticmethod
    def _overlap(text: str, string: str) -> int:
        """Length of the longest suffix of `text` that is a proper prefix of `string`."""
        at = text.find(string[0], max(0, len(text) - len(string) + 1))
        while at >= 0:
            if string.startswith(text[at:]):
                return len(text) - at
            at = text.find(string[0], at + 1)
        return 0
