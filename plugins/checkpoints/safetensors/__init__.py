"""The safetensors checkpoint: a file, a folder with config.json, or a diffusers pipeline folder.

The plugin also claims pickled weights, in order to refuse them with a hint on conversion.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ostro import Checkpoint, hookimpl

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
"""Suffixes of weight files that can run code when they are loaded."""


PARTS = "model_index.json"
"""The file that lists the components of a pipeline folder."""


def claims_parts(path: Path) -> bool:
    """Whether `path` is a pipeline folder of diffusers."""
    return (path / PARTS).is_file()


def claims(path: Path) -> bool:
    """Whether `path` is a safetensors or pickle file, or a folder of them."""
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
    """Yield the safetensors container, and that of pipeline folders."""
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
