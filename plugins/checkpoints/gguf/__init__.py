"""The GGUF checkpoint: llama.cpp's files of weights, tokenizer and metadata, also split ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ostro import Checkpoint, hookimpl

MAGIC = b"GGUF"


def claims(path: Path) -> bool:
    """Whether `path` is a GGUF file (by suffix or magic) or a folder with no other weights."""
    if path.is_dir():
        suffixes = {entry.suffix for entry in path.iterdir()}
        return ".gguf" in suffixes and ".safetensors" not in suffixes
    if path.suffix == ".gguf":
        return True
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


@hookimpl
def ostro_checkpoints() -> Iterator[Checkpoint]:
    """Yield the GGUF container."""
    yield Checkpoint(
        name="gguf",
        claims=claims,
        open="ostro.plugins.checkpoints.gguf.reader:open_gguf",
        suffixes=(".gguf",),
        write="ostro.plugins.checkpoints.gguf.write:write_gguf",
    )
