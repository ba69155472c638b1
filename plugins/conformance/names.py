"""The check of GGUF names: every weight has a name, and transforms are invertible."""

from __future__ import annotations

import pytest
import torch

from ostro.core.load.experts import ExpertNames
from ostro.core.load.names import Names
from ostro.core.load.weights import weight_slots
from ostro.core.nn.linear import WeightSlot
from ostro.core.records import Architecture
from ostro.plugins.conformance.checks import check
from ostro.plugins.conformance.parity import Subject


def reads_gguf(record: Architecture) -> bool:
    return record.gguf_config is not None


@check(reads_gguf)
def gguf_names_cover_every_weight(tiny: Subject) -> None:
    """Every weight has a GGUF name, and `read` of its transform inverts `write`."""
    if tiny.record.names is None:
        pytest.fail(f"{tiny.name} reads GGUF files, but its record declares no names")
    names = tiny.names
    wanted = [
        s for s in weight_slots(tiny.load().model) if s.expert is None and ".experts." not in s.name
    ]
    wrong = [fault for slot in wanted if (fault := fault_of(names, slot))]
    if isinstance(names, ExpertNames):
        ends = {pair.theirs for pair in names.stacks}
        if not any(theirs.startswith("blk.") for theirs in ends):
            wrong.append("the stacked experts have no GGUF names")
    assert not wrong, "\n".join(wrong)


def fault_of(names: Names, slot: WeightSlot) -> str | None:
    """The fault of a weight's GGUF name or transform, or None."""
    ours = slot.name if slot.kind == "tensor" else f"{slot.name}.weight"
    there = names.write(ours, "gguf")
    back = [named for named in names.find(there.theirs, "gguf") if named.name == ours]
    if not back:
        return f"{ours} has no GGUF name; add a pair to the record's names"
    if there.transform is not None:
        tensor = torch.rand(slot.shape) + 0.5
        written = there.transform.write(tensor)
        if not torch.allclose(there.transform.read(written).reshape(slot.shape), tensor, atol=1e-5):
            return f"{ours}: read of {there.transform} does not invert its write"
    return None
