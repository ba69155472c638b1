"""The UQFF checkpoint: mistral.rs's folder of a quantized model.

Quantized layers are in .uqff files, other tensors in residual.safetensors, beside config.json and
the tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ostro import Checkpoint, hookimpl

SUFFIX = ".uqff"
RESIDUAL = "residual.safetensors"
"""The file of the tensors that are not quantized."""


def claims(path: Path) -> bool:
    """Whether `path` is a .uqff file, or a folder of them without weights of another kind."""
    if not path.is_dir():
        return path.suffix == SUFFIX
    names = [entry.name for entry in path.iterdir()]
    others = [name for name in names if name.endswith(".safetensors") and name != RESIDUAL]
    return not others and any(name.endswith(SUFFIX) for name in names)


@hookimpl
def ostro_checkpoints() -> Iterator[Checkpoint]:
    """Yield the UQFF container, which includes the .safetensors file in its folder."""
    yield Checkpoint(
        name="uqff",
        claims=claims,
        open="ostro.plugins.checkpoints.uqff.reader:open_uqff",
        suffixes=(SUFFIX,),
        write="ostro.plugins.checkpoints.uqff.save:save_uqff",
        replaces=True,
    )
