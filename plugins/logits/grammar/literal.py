"""Texts in Lark grammars: a control token in a text is its id, not its spelling."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping


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
