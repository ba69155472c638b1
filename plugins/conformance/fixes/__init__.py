"""Changes that would undo a bug: what a port is likely to have got wrong, turned the other way.

`changes` looks at a model, however wrong it is, and at its checkpoint's config.json, and yields
what could be otherwise. A change's name says what ought to hold: where applying it makes the model
equal to its reference, that is the bug.
"""

from __future__ import annotations

from collections.abc import Iterator

from ostro.core.nn import Model
from ostro.core.records import Mutant
from ostro.plugins.conformance.fixes import attention, blocks, whole
from ostro.plugins.conformance.fixes.change import Raw, applied

__all__ = ["applied", "changes"]


def changes(model: Model, raw: Raw) -> Iterator[Mutant]:
    """Everything that could be otherwise in a loaded model; `raw` is its config.json."""
    for module in (attention, blocks, whole):
        for kind in module.KINDS:
            yield from kind(model, raw)
