"""A budget in the place of a format's name: `--quant 6GB`, `--quant 4.5bpw`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ostro.core.device import parse_size
from ostro.core.errors import UsageError

BITS = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*bpw", re.IGNORECASE)
BYTES = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)\s*(?:[kmg]i?)?b", re.IGNORECASE)

MOST = 64
"""Bits of a weight, at most: no float has more."""


@dataclass(frozen=True)
class Budget:
    """Bytes in memory that all weights may take, or bits that each may which can be quantized.

    `text` is what the user wrote.
    """

    text: str
    nbytes: int = 0
    bits: float = 0.0


def read_budget(text: str | None) -> Budget | None:
    """What --quant says where it is a budget. Raises UsageError for one that is none at all."""
    text = (text or "").strip()
    if BYTES.fullmatch(text):
        return Budget(text, nbytes=int(parse_size(text)))
    if (found := BITS.fullmatch(text)) is None:
        return None
    bits = float(found[1])
    if not 0 < bits <= MOST:
        raise UsageError(f"--quant {text}: bits per weight are within 0..{MOST}, such as 4.5bpw")
    return Budget(text, bits=bits)
