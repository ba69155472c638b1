"""A budget: `--quant 6GB`, `--quant 4.5bpw`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ostro import errors

BITS = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*bpw", re.IGNORECASE)
BYTES = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)\s*(?:[kmg]i?)?b", re.IGNORECASE)

MOST = 64
"""The most bits per weight: no float has more."""


@dataclass(frozen=True)
class Budget:
    """Bytes of memory for all weights, or bits for each weight that can be quantized.

    `text` is what the user wrote.
    """

    text: str
    nbytes: int = 0
    bits: float = 0.0


def is_budget(text: str) -> bool:
    """Whether `--quant` names a budget."""
    return any(form.fullmatch(text.strip()) for form in (BITS, BYTES))


def read_budget(text: str) -> Budget:
    """The budget that `--quant` names. Raises UsageError for a number out of range."""
    from ostro.checkpoints import parse_size

    text = text.strip()
    if (found := BITS.fullmatch(text)) is None:
        return Budget(text, nbytes=int(parse_size(text)))
    bits = float(found[1])
    if not 0 < bits <= MOST:
        raise errors.UsageError(
            f"--quant {text}: bits per weight must be in 0..{MOST}, such as 4.5bpw"
        )
    return Budget(text, bits=bits)
