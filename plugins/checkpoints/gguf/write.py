"""Write a model as a GGUF file: a quantized copy of another one, or a model folder of the hub."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Protocol

from ostro.checkpoints import Saving, SavingProgress, atomic_path, refuse_existing
from ostro.errors import UsageError
from ostro.plugins.checkpoints.gguf.convert import Converted
from ostro.plugins.checkpoints.gguf.copy import Copy
from ostro.plugins.checkpoints.gguf.entries import TensorEntry, blocks, report
from ostro.plugins.checkpoints.gguf.filetypes import base_format, file_type, most_common
from ostro.plugins.checkpoints.gguf.mmproj import MediaProjector


class Source(Protocol):
    """The model to be written."""

    def entries(self) -> list[TensorEntry]: ...
    def write_header(self, path: Path, entries: Sequence[TensorEntry], file_type: int) -> None: ...
    def check(self, path: Path, projector: Path | None) -> None:
        """Raise an OstroError if the written files do not describe the same model."""


@dataclass
class Output:
    """A file to be written: its tensors, and the function that writes its header."""

    file: Path
    entries: Sequence[TensorEntry]
    write_header: Callable[[Path], None]

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.entries)

    def write(self, path: Path, progress: Callable[[int], None]) -> None:
        """Write the file to a temporary path; `progress` receives the bytes of each tensor."""
        self.write_header(path)
        with open(path, "ab") as stream:
            for each in self.entries:
                each.emit(stream)
                progress(each.nbytes)
            stream.flush()
            os.fsync(stream.fileno())


def write_gguf(saving: Saving, progress: SavingProgress) -> Path:
    """Write `<model>-<name>.gguf` into the folder of a saving, tensor by tensor; return its path.

    The name is that of the quantization, or of the float format. The encoder and the projection of
    a folder with media become `mmproj-<model>-<format>.gguf`, in floats. Raises Unsupported for
    models that GGUF files cannot hold and for formats that are not ggml blocks, UsageError if a
    file exists or no tensor has the requested format, CheckpointError if the disk is full.
    """
    source: Source = Copy(saving) if saving.outline.space == "gguf" else Converted(saving)
    entries = source.entries()
    most = most_common(common(entries))
    name = saving.name.upper() if base_format(saving.name) else saving.name or most
    refuse_untrue(saving, name, entries)
    path = Path(os.path.abspath(saving.outline.container.path))  # "." has no name
    model = path.name if path.is_dir() else path.stem
    header = partial(source.write_header, entries=entries, file_type=file_type(most, name))
    outputs = [Output(saving.folder / f"{model}-{name}.gguf", entries, header)]
    if isinstance(source, Converted) and source.projector is not None:
        outputs.append(projector_output(source, source.projector, saving.folder, model))
    for output in outputs:
        refuse_existing(output.file)
    saving.folder.mkdir(parents=True, exist_ok=True)
    write_outputs(outputs, source, progress)
    saving.report.extend(report([entry for output in outputs for entry in output.entries]))
    if requested(saving, name) not in (None, most):
        saving.report.append(f"most weights of the layers are {most}")
    saving.report.extend(f"wrote the projector {output.file}" for output in outputs[1:])
    if isinstance(source, Converted) and source.lacks_projector:
        saving.report.append(
            "the encoder of media is not written: docs/conversion.md has the reasons"
        )
    return outputs[0].file


def projector_output(
    source: Converted, projector: MediaProjector, folder: Path, model: str
) -> Output:
    """The projector file of a model folder."""
    entries = projector.entries()
    most = most_common(common(entries))
    number = file_type(most, most)
    header = partial(source.write_keys, keys=projector.keys, entries=entries, file_type=number)
    return Output(folder / f"mmproj-{model}-{most}.gguf", entries, header)


def write_outputs(outputs: Sequence[Output], source: Source, progress: SavingProgress) -> None:
    """Write and check all files; they get their names together."""
    total, done = sum(output.nbytes for output in outputs), 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        progress(done, total)

    with ExitStack() as stack:
        paths = [stack.enter_context(atomic_path(output.file)) for output in outputs]
        for output, path in zip(outputs, paths, strict=True):
            output.write(path, advance)
        text, *projectors = paths
        source.check(text, projectors[0] if projectors else None)


def common(entries: Sequence[TensorEntry]) -> list[tuple[str, int]]:
    """The formats and elements of the matrices of layers, or of all tensors without layers."""
    every = [(each.format, prod(each.shape), each.name) for each in entries if each.is_matrix]
    layers = [(format, elements) for format, elements, name in every if "blk." in name]
    return layers or [(format, elements) for format, elements, _ in every]


def requested(saving: Saving, name: str) -> str | None:
    """The format that a file's name promises; None for floats and chosen formats."""
    default = saving.plan.default
    return base_format(name) if default is None else blocks(default)


def refuse_untrue(saving: Saving, name: str, entries: Sequence[TensorEntry]) -> None:
    """Raise UsageError if no tensor has the format that the file's name would promise."""
    wanted = requested(saving, name)
    if wanted is None or any(each.format == wanted for each in entries):
        return
    reasons = sorted({each.reason for each in entries if each.reason})
    raise UsageError(
        f"no tensor of {saving.outline.container.path.name} can be {name} (whose blocks are "
        f"{wanted}): {'; '.join(reasons[:3]) or 'the rows are no whole blocks'}"
    )
