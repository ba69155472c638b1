"""mask: every implementation against a computation over lists."""

import math
from types import ModuleType

import pytest
import torch

from ostro.core.ops.mask import cpu, naive, triton
from ostro.plugins.conformance.kernels import DEVICE

MODULES = [naive, triton] if DEVICE.type == "cuda" else [naive, cpu, triton]


def words(allowed: list[bool]) -> list[int]:
    """The bits of a row as int32."""
    found = []
    for start in range(0, len(allowed), 32):
        word = sum(1 << i for i, bit in enumerate(allowed[start : start + 32]) if bit)
        found.append(word - (1 << 32) if word >> 31 else word)
    return found


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
@pytest.mark.parametrize("vocabulary", [5, 32, 1030, 2080])
def test_masks(module: ModuleType, vocabulary: int) -> None:
    torch.manual_seed(vocabulary)
    logits = torch.randn(4, vocabulary, device=DEVICE)
    rows, want = [2, 0], logits.tolist()
    allowed = [torch.randint(2, (vocabulary,)).bool().tolist() for _ in rows]
    allowed[0][-1], allowed[1][-1] = True, False
    for row, each in zip(rows, allowed, strict=True):
        want[row] = [x if ok else -math.inf for x, ok in zip(want[row], each, strict=True)]
    bits = torch.tensor([words(each) for each in allowed], dtype=torch.int32, device=DEVICE)
    assert module.mask(logits, torch.tensor(rows, device=DEVICE), bits) is logits
    assert logits.tolist() == want


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_no_rows_change_nothing(module: ModuleType) -> None:
    logits = torch.randn(2, 40, device=DEVICE)
    none = torch.zeros(0, dtype=torch.int64, device=DEVICE)
    bits = torch.zeros(0, 2, dtype=torch.int32, device=DEVICE)
    assert torch.equal(module.mask(logits.clone(), none, bits), logits)
