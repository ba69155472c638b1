"""The memory planner: parsed sizes, and blocks that never exceed the memory."""

from __future__ import annotations

import random

import pytest
import torch

from ostro.core.cache import CacheKind, CacheSpec
from ostro.core.device import cached_bytes, free_bytes, parse_size
from ostro.core.engine.startup import memory
from ostro.core.engine.startup.memory import budget, largest_context, plan_blocks
from ostro.core.errors import InsufficientMemory, UsageError
from ostro.core.settings import Settings

CPU = torch.device("cpu")
BLOCK, ROWS = 16, 64


class Kind(CacheKind):
    """A cache kind of `size` bytes per block."""

    def __init__(self, size: int, window: int = 0) -> None:
        spec = CacheSpec(heads=1, key_dim=8, value_dim=8, window=window)
        super().__init__(spec, 1, block=BLOCK, dtype=torch.float32, device=CPU)
        self.size = size

    def bytes(self, blocks: int) -> int:
        return blocks * self.size

    def allocate(self, blocks: int) -> None:
        """Allocates nothing."""

    def view(self, layer: int, batch: object) -> None:
        """Nothing is shown."""


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("6GB", 6e9),
        ("512MiB", 512 * 2**20),
        ("1.5 GiB", 1.5 * 2**30),
        (" 10kb ", 10e3),
        ("64KiB", 65536),
        ("100", 100),
        ("100B", 100),
        ("0.5", 0.5),
        ("1", 1),
        ("1e9", 1e9),
    ],
)
def test_sizes_are_parsed(text: str, size: float) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "lots", "GB", "6 parsecs", "6XB", "-6GB", "0", "nan", "inf", "1e30GB", "6G6B"]
)
def test_invalid_sizes_are_quoted(text: str) -> None:
    with pytest.raises(UsageError, match="size") as error:
        parse_size(text)
    assert repr(text) in str(error.value)


def test_a_budget_is_a_size_a_share_or_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 8 * 10**9)
    assert budget(Settings(memory="3GB"), CPU) == 3 * 10**9
    assert budget(Settings(memory="0.5"), CPU) == 4 * 10**9
    assert budget(Settings(memory="8GB"), CPU) == 8 * 10**9
    assert budget(Settings(), CPU) == 2 * 10**9
    with pytest.raises(
        InsufficientMemory, match=r"--memory 9GB: 9.00 GB of cache requested, 8.00 GB free"
    ):
        budget(Settings(memory="9GB"), CPU)


def test_free_memory_is_that_of_the_system() -> None:
    with open("/proc/meminfo") as lines:
        total = int(dict(line.split(":") for line in lines)["MemTotal"].split()[0]) * 1024
    assert 0 < free_bytes(CPU) < total
    assert 0 <= cached_bytes() < total


def test_all_groups_get_their_maximum_if_it_fits() -> None:
    [blocks] = plan_blocks([Kind(100)], 10**6, 160, ROWS, 4)
    assert blocks == 4 * (160 // BLOCK + 1)


def test_a_window_needs_no_more_than_the_window() -> None:
    full, window = plan_blocks([Kind(100), Kind(100, 32)], 10**9, 16_000, ROWS, 4)
    assert full == 4 * 1001 and window == 4 * (2 + 4 + 2), "the window, a step, and both ends"
    [short] = plan_blocks([Kind(100, 3200)], 10**9, 160, ROWS, 4)
    assert short == 4 * 11, "a window longer than the context is no window"


def test_one_sequence_must_fit() -> None:
    needed = 100 * 11
    assert plan_blocks([Kind(100)], needed, 160, ROWS, 4) == [11]
    with pytest.raises(InsufficientMemory, match=r"one sequence of 160 tokens.*--context"):
        plan_blocks([Kind(100)], needed - 1, 160, ROWS, 4)


@pytest.mark.parametrize("size", [999, 1_000_000, 5 * 10**9])
def test_an_error_shows_sizes_that_differ(size: int) -> None:
    kind = Kind(size // 11 + 1)
    with pytest.raises(InsufficientMemory) as error:
        plan_blocks([kind], size // 3, 160, ROWS, 1)
    assert " 0.00 GB" not in str(error.value)


@pytest.mark.parametrize("seed", range(50))
def test_plans_stay_within_their_bytes(seed: int) -> None:
    rng = random.Random(seed)
    kinds = [Kind(rng.randint(1, 1000), rng.choice([0, 0, 64])) for _ in range(rng.randint(1, 4))]
    context, seqs = rng.randint(1, 5000), rng.randint(1, 64)
    size = rng.randint(1, 10**7)
    try:
        counts = plan_blocks(kinds, size, context, ROWS, seqs)
    except InsufficientMemory:
        assert sum(kind.bytes(kind.blocks_of(context, ROWS)) for kind in kinds) > size
        return
    assert sum(kind.bytes(n) for kind, n in zip(kinds, counts, strict=True)) <= size
    for kind, n in zip(kinds, counts, strict=True):
        assert n >= kind.blocks_of(context, ROWS)


def test_a_context_is_halved_until_it_fits() -> None:
    assert largest_context([Kind(100)], 10**9, 4096, ROWS, BLOCK) == 4096
    assert largest_context([Kind(100)], 100 * (512 // BLOCK + 1), 4096, ROWS, BLOCK) == 512
    assert largest_context([Kind(100)], 1, 4096, ROWS, BLOCK) == 2 * BLOCK
    fits = largest_context([Kind(100)], 3300, 4096, ROWS, BLOCK)
    plan_blocks([Kind(100)], 3300, fits, ROWS, 8)
