"""Parse budgets: `--quant 6GB`, `--quant 4.5bpw`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ostro import errors

BITS = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*bpw", re.IGNORECASE)
BYTES = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)\s*(?:[kmg]i?)?b", re.IGNORECASE)

MAX_BITS = 64
"""Maximum bits per weight, those of float64."""


@dataclass(frozen=True)
class Budget:
    """Bytes of memory for all weights, or bits per weight that can be quantized.

    `text` is the value of `--quant`.
    """

    text: str
    nbytes: int = 0
    bits: float = 0.0


def is_budget(text: str) -> bool:
    """Whether a value of `--quant` is a budget."""
    return any(form.fullmatch(text.strip()) for form in (BITS, BYTES))


def read_budget(text: str) -> Budget:
    """Parse a budget. Raises UsageError for a number out of range."""
    from ostro.checkpoints import parse_size

    text = text.strip()
    if (found := BITS.fullmatch(text)) is None:
        return Budget(text, nbytes=int(parse_size(text)))
    bits = float(found[1])
    if not 0 < bits <= MAX_BITS:
        raise errors.UsageError(
            f"--quant {text}: bits per weight must be in 0..{MAX_BITS}, such as 4.5bpw"
        )
    return Budget(text, bits=bits)
