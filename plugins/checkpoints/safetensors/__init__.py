"""The safetensors checkpoint: a file, a folder of shards with their config.json, or a folder of
such folders as diffusers writes it.

It claims pickled weights too, because somebody must refuse them and say how to convert them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ostro import Checkpoint, hookimpl

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
"""Suffixes of weight files that can run code when they are opened."""


PARTS = "model_index.json"
"""Names the parts of a folder of folders."""


def claims_parts(path: Path) -> bool:
    """Say whether `path` is a folder of folders."""
    return (path / PARTS).is_file()


def claims(path: Path) -> bool:
    """Say whether `path` is a safetensors or pickle file, or a folder of them."""
    if claims_parts(path):
        return False
    if not path.is_dir():
        return path.suffix in (".safetensors", *PICKLES)
    suffixes = {entry.suffix for entry in path.iterdir()}
    return ".safetensors" in suffixes or (
        ".gguf" not in suffixes and not suffixes.isdisjoint(PICKLES)
    )


@hookimpl
def ostro_checkpoints() -> Iterator[Checkpoint]:
    """Yield the safetensors container, and the one of several of them."""
    yield Checkpoint(
        name="safetensors",
        claims=claims,
        open="ostro.plugins.checkpoints.safetensors.reader:open_safetensors",
        suffixes=(".safetensors",),
        write="ostro.plugins.checkpoints.safetensors.write:write_safetensors",
    )
    yield Checkpoint(
        name="diffusers",
        claims=claims_parts,
        open="ostro.plugins.checkpoints.safetensors.parts:open_parts",
    )
