"""Write a model as a GGUF file: a quantized copy of another one, or a model folder of the hub."""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Protocol

from ostro.checkpoints import Saving, SavingProgress, atomic_path, refuse_existing
from ostro.errors import UsageError
from ostro.plugins.checkpoints.gguf.convert import Converted
from ostro.plugins.checkpoints.gguf.copy import Copy
from ostro.plugins.checkpoints.gguf.entries import TensorEntry, blocks, report
from ostro.plugins.checkpoints.gguf.filetypes import base_format, file_type, most_common


class Source(Protocol):
    """The model to be written."""

    def entries(self) -> list[TensorEntry]: ...
    def write_header(self, path: Path, entries: Sequence[TensorEntry], file_type: int) -> None: ...
    def check(self, path: Path) -> None:
        """Raise an OstroError if the written file does not describe the same model."""


def write_gguf(saving: Saving, progress: SavingProgress) -> Path:
    """Write `<model>-<name>.gguf` into the folder of a saving, tensor by tensor; return its path.

    The name is that of the quantization, or of the float format. Raises Unsupported for models that
    GGUF files cannot hold and for formats that are not ggml blocks, UsageError if the file exists
    or no tensor has the requested format, CheckpointError if the disk is full.
    """
    source: Source = Copy(saving) if saving.outline.space == "gguf" else Converted(saving)
    entries = source.entries()
    most = most_common(common(entries))
    name = saving.name.upper() if base_format(saving.name) else saving.name or most
    refuse_untrue(saving, name, entries)
    path = saving.outline.container.path
    file = saving.folder / f"{path.name if path.is_dir() else path.stem}-{name}.gguf"
    refuse_existing(file)
    saving.folder.mkdir(parents=True, exist_ok=True)
    total, done = sum(each.nbytes for each in entries), 0
    with atomic_path(file) as path:
        source.write_header(path, entries, file_type(most, name))
        with open(path, "ab") as stream:
            for each in entries:
                each.emit(stream)
                done += each.nbytes
                progress(done, total)
            stream.flush()
            os.fsync(stream.fileno())
        source.check(path)
    saving.report.extend(report(entries))
    return file


def common(entries: Sequence[TensorEntry]) -> list[tuple[str, int]]:
    """The formats and elements of the matrices of layers, or of all tensors without layers."""
    every = [(each.format, prod(each.shape), each.name) for each in entries if each.is_matrix]
    layers = [(format, elements) for format, elements, name in every if "blk." in name]
    return layers or [(format, elements) for format, elements, _ in every]


def refuse_untrue(saving: Saving, name: str, entries: Sequence[TensorEntry]) -> None:
    """Raise UsageError if no tensor has the format that the file's name would promise."""
    default = saving.plan.default
    wanted = base_format(name) if default is None else blocks(default)
    if wanted is None or any(each.format == wanted for each in entries):
        return
    reasons = sorted({each.reason for each in entries if each.reason})
    raise UsageError(
        f"no tensor of {saving.outline.container.path.name} can be {name} (whose blocks are "
        f"{wanted}): {'; '.join(reasons[:3]) or 'the rows are no whole blocks'}"
    )
