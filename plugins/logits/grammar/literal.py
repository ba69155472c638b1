"""Texts and patterns in grammars: a control token in a text is its id, not its spelling."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

BACKSLASH = "invalid regular expression: a backslash at its end; write two for one"
"""The error of a pattern that ends within an escape."""


def ends_within_escape(pattern: str) -> bool:
    """Whether the last backslash of a pattern escapes nothing; llguidance would leave it out."""
    return (len(pattern) - len(pattern.rstrip("\\"))) % 2 == 1


def quote(text: str) -> str:
    """A text as a terminal of Lark."""
    return json.dumps(text, ensure_ascii=False)


def write(text: str, special: Mapping[str, int]) -> str:
    """A text as a sequence of terminals and control tokens.

    special: the ids of control tokens by spelling. A model writes such a token as one id.
    """
    if not text:
        return ""
    spellings = sorted((name for name in special if name), key=len, reverse=True)
    if not spellings:
        return quote(text)
    parts = re.split(f"({'|'.join(map(re.escape, spellings))})", text)
    return " ".join(
        f"<[{special[part]}]>" if part in special else quote(part) for part in parts if part
    )
