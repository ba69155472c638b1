"""Writing into pages on CPU: one copy per run of rows that stay together in a block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor


def kv_write(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """See the package."""
    block = k_cache.shape[2]
    for row, slot, n in runs(slots.tolist(), block):
        page, place = divmod(slot, block)
        k_cache[page, :, place : place + n] = k[row : row + n].transpose(0, 1)
        v_cache[page, :, place : place + n] = v[row : row + n].transpose(0, 1)


def runs(slots: Sequence[int], block: int) -> Iterator[tuple[int, int, int]]:
    """(first row, its slot, rows) of each stretch of consecutive slots within one block."""
    row = 0
    while row < len(slots):
        slot = slots[row]
        if slot < 0:
            row += 1
            continue
        most = min(block - slot % block, len(slots) - row)
        n = 1
        while n < most and slots[row + n] == slot + n:
            n += 1
        yield row, slot, n
        row += n
