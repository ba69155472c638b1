"""Checks of how files of other name spaces call a model's weights."""

from __future__ import annotations

import pytest
import torch

from ostro.core.load.experts import ExpertNames
from ostro.core.load.names import Names
from ostro.core.load.weights import slots
from ostro.core.nn.linear import Slot
from ostro.core.records import Architecture
from ostro.plugins.conformance.checks import check
from ostro.plugins.conformance.parity import Subject


def reads_gguf(record: Architecture) -> bool:
    return record.gguf_config is not None


@check(reads_gguf)
def gguf_names_cover_every_weight(tiny: Subject) -> None:
    """And the transforms on the way there are undone by those on the way back."""
    if tiny.record.names is None:
        pytest.fail(f"{tiny.name} reads GGUF files, but its record declares no names")
    names = tiny.names
    wanted = [s for s in slots(tiny.load().model) if s.expert is None and ".experts." not in s.name]
    wrong = [why for slot in wanted if (why := lost(names, slot))]
    if isinstance(names, ExpertNames):
        ends = {pair.theirs for pair in names.stacks}
        if not any(theirs.startswith("blk.") for theirs in ends):
            wrong.append("the experts have no names")
    assert not wrong, "\n".join(wrong)


def lost(names: Names, slot: Slot) -> str | None:
    """What becomes of a weight on its way into a GGUF file and back, where that is not itself."""
    ours = slot.name if slot.kind == "tensor" else f"{slot.name}.weight"
    there = names.write(ours, "gguf")
    back = [named for named in names.find(there.theirs, "gguf") if named.name == ours]
    if not back:
        return f"{ours} has no name in GGUF files"
    if there.transform is not None:
        tensor = torch.rand(slot.shape) + 0.5
        held = there.transform.write(tensor)
        if not torch.allclose(there.transform.read(held).reshape(slot.shape), tensor, atol=1e-5):
            return f"{ours}: {there.transform} is not undone by its own way back"
    return None
