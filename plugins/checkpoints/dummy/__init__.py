"""The dummy checkpoint: random weights of a model's shape, for benchmarks without a download.

The container claims no file; `--dummy-weights SHAPE` selects it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ostro import Checkpoint, hookimpl


def claims(path: Path) -> bool:
    return False


@hookimpl
def ostro_checkpoints() -> Iterator[Checkpoint]:
    """Yield the dummy container."""
    yield Checkpoint(name="dummy", claims=claims, open=f"{__name__}.container:open_dummy")
