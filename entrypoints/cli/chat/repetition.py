"""Ends answers that repeat the same tokens."""

from __future__ import annotations

PERIOD = 64
"""Longest cycle that is found, in tokens."""

LENGTH = 256
"""Tokens at the end of an answer that consist of one cycle when the answer ends."""


class RepetitionGuard:
    """Finds an answer whose last `LENGTH` tokens repeat a cycle of at most `PERIOD` tokens."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.repeats = [0] * PERIOD
        """At index p - 1: how many last tokens equal the one p tokens before them."""

    def add(self, token: int) -> bool:
        """Add the next token. Returns whether the answer repeats itself."""
        recent = self.tokens[-PERIOD:][::-1]
        self.tokens.append(token)
        for i, earlier in enumerate(recent):
            self.repeats[i] = self.repeats[i] + 1 if earlier == token else 0
        return any(count + i + 1 >= LENGTH for i, count in enumerate(self.repeats) if count)
