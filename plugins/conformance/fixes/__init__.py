"""Candidate fixes: changes of a loaded model that would undo a likely porting bug.

`changes` yields them for the modules of a model and its config.json. The name of a change states
the correct behaviour: if the change makes the model match its reference, its opposite is the bug.
"""

from __future__ import annotations

from collections.abc import Iterator

from ostro.core.nn import Model
from ostro.core.records import Mutant
from ostro.plugins.conformance.fixes import attention, blocks, model
from ostro.plugins.conformance.fixes.change import Raw, applied

__all__ = ["applied", "changes"]


def changes(loaded: Model, raw: Raw) -> Iterator[Mutant]:
    """All candidate fixes of a loaded model; `raw` is its config.json."""
    for module in (attention, blocks, model):
        for kind in module.KINDS:
            yield from kind(loaded, raw)
