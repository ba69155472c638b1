"""UQFF, mistral.rs's folder of a quantized model: layers in .uqff files, each family's own way, and
beside them the tensors that are not quantized, config.json and the tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ostro import Checkpoint, hookimpl

SUFFIX = ".uqff"
RESIDUAL = "residual.safetensors"
"""Holds what is not quantized."""


def claims(path: Path) -> bool:
    """Say whether `path` is a .uqff file, or a folder of them without weights of another kind."""
    if not path.is_dir():
        return path.suffix == SUFFIX
    names = [entry.name for entry in path.iterdir()]
    others = [name for name in names if name.endswith(".safetensors") and name != RESIDUAL]
    return not others and any(name.endswith(SUFFIX) for name in names)


@hookimpl
def ostro_checkpoints() -> Iterator[Checkpoint]:
    """Yield the UQFF container, to which the .safetensors file in its folder belongs."""
    yield Checkpoint(
        name="uqff",
        claims=claims,
        open="ostro.plugins.checkpoints.uqff.reader:open_uqff",
        suffixes=(SUFFIX,),
        write="ostro.plugins.checkpoints.uqff.save:save_uqff",
        replaces=True,
    )
