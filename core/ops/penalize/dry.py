"""DRY ("don't repeat yourself"): penalties on tokens that would extend a repeated suffix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ostro.core.messages.requests import Dry

MAX_EXPONENT = 100
"""The largest exponent of a penalty: longer matches cost the same, and updates stay bounded."""

MAX_PENALTY = 1e4
"""The largest penalty, in logits: base ** exponent overflows float32."""


class DryPenalty:
    """The DRY penalties of one sequence, updated with each of its tokens.

    `runs[d - 1]` counts the last tokens that equal the tokens `d` positions before them. A new
    token changes each count by itself: it grows by one or falls to 0. An update is therefore one
    pass over an array, and no match is ever searched for.
    """

    def __init__(self, rules: Dry, tokens: Sequence[int]) -> None:
        self.rules = rules
        self.breakers = np.array(sorted(set(rules.breakers)), dtype=np.int32)
        self.amounts = np.array(
            [min(rules.multiplier * rules.base**i, MAX_PENALTY) for i in range(MAX_EXPONENT + 1)],
            dtype=np.float32,
        )
        # Matches longer than `longest` all cost the same. The counts may therefore start that many
        # tokens before the end, instead of at the first token of a long prompt.
        longest = rules.allowed_length + MAX_EXPONENT
        self.count = max(0, len(tokens) - longest)
        self.tokens = np.zeros(2 * len(tokens) + 1, dtype=np.int32)
        self.tokens[: self.count] = tokens[: self.count]
        self.runs = np.zeros_like(self.tokens)
        self.update(tokens)

    def update(self, tokens: Sequence[int]) -> None:
        """Append the tokens that are new since the last call; `tokens` are all tokens."""
        # Doubled, so that the cost of growing is constant per token.
        if len(tokens) > len(self.tokens):
            room = 2 * len(tokens) - len(self.tokens)
            self.tokens, self.runs = (np.pad(a, (0, room)) for a in (self.tokens, self.runs))
        for token in tokens[self.count :]:
            self.append(token)

    def append(self, token: int) -> None:
        """Append one token and update all counts. No match includes a breaker."""
        stop = self.count
        start = max(0, stop + 1 - self.rules.window) if self.rules.window else 0
        runs = self.runs[: stop - start]
        if token in self.breakers:
            runs[:] = 0
        else:
            runs += 1
            runs *= self.tokens[start:stop][::-1] == token
        self.tokens[stop] = token
        self.count += 1

    def penalties(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Token ids [n], each once, and the penalties [n] to subtract from their logits."""
        rules, last = self.rules, self.count - 1
        reach = min(self.count, rules.window or self.count) - 1
        # A match ends at the window's edge: `d` positions back it has `reach + 1 - d` tokens.
        matches = np.minimum(self.runs[: max(reach, 0)], np.arange(reach, 0, -1))
        back = np.flatnonzero(matches >= rules.allowed_length)
        followers = self.tokens[last - back]
        if len(self.breakers):
            penalized = ~np.isin(followers, self.breakers)
            back, followers = back[penalized], followers[penalized]
        # A token may follow several matches: the longest one counts.
        ids, which = np.unique(followers, return_inverse=True)
        best = np.zeros(len(ids), dtype=np.int64)
        np.maximum.at(best, which, matches[back])
        amounts = self.amounts[np.minimum(best - rules.allowed_length, MAX_EXPONENT)]
        return ids.astype(np.int64), amounts
