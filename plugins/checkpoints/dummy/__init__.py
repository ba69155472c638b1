"""The dummy checkpoint: a model's shape filled with noise, for measurements that need no download.

It claims no file: `--dummy-weights SHAPE` asks for it by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ostro import Checkpoint, hookimpl


def claims(path: Path) -> bool:
    return False


@hookimpl
def ostro_checkpoints() -> Iterator[Checkpoint]:
    """Yield the container of noise."""
    yield Checkpoint(name="dummy", claims=claims, open=f"{__name__}.container:open_dummy")
