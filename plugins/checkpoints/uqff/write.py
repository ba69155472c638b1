"""Write a UQFF folder, which mistral.rs and ostro load, shard by shard.

The files are written to a hidden sibling folder, which is renamed at the end. An interrupted run
leaves complete shards there, and the next run continues after them.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ostro import Storage, __version__
from ostro.checkpoints import DTYPES, read_config
from ostro.errors import CheckpointError, OstroError, UsageError
from ostro.plugins.checkpoints.uqff import RESIDUAL, SUFFIX
from ostro.plugins.checkpoints.uqff.reader import REPORT, VERSION, VERSION_KEYS
from ostro.plugins.checkpoints.uqff.storages import stored_name, tensors, word

LIMIT = 4 << 30
"""The largest size of a shard in bytes. A shard is in memory until it is written; mistral.rs
writes up to 10 GiB."""

NAMES = {getattr(torch, dtype): name for name, (dtype, _) in DTYPES.items()}
VERSION_TEXT = ".".join(map(str, VERSION))
METADATA = {
    "uqff.producer": "ostro",
    "uqff.version": VERSION_TEXT,
    "uqff.producer.ostro.version": __version__,
}


@dataclass(frozen=True)
class Entry:
    """A layer: `key` is its name without ".weight", `make` returns its weight.

    `make` is not called for layers that an earlier run has written.
    """

    key: str
    make: Callable[[], Storage]
    bias: Tensor | None = None


@dataclass
class Output:
    """The shards of one quantization in `folder`, and the report entries of their layers."""

    folder: Path
    stem: str
    base_model: str | None
    shards: list[str] = field(default_factory=list)
    layers: list[dict[str, Any]] = field(default_factory=list)
    buffer: dict[str, Tensor] = field(default_factory=dict)
    buffered_layers: list[dict[str, Any]] = field(default_factory=list)

    @property
    def done(self) -> set[str]:
        """Keys of the layers in complete shards."""
        return {layer["module"] for layer in self.layers}

    def add(self, entry: Entry, limit: int) -> None:
        """Buffer a layer, after writing the current shard if the layer does not fit."""
        storage = entry.make()
        parts = tensors(entry.key, storage)
        named = {f"{entry.key}.{suffix}": tensor for suffix, tensor in parts.items()}
        if entry.bias is not None:
            named[f"{entry.key}.bias"] = entry.bias
        if self.buffer and size(self.buffer) + size(named) > limit:
            self.flush()
        self.buffer |= named
        shape, stored = list(storage.shape), stored_name(storage, parts)
        self.buffered_layers.append({"module": entry.key, "stored": stored, "shape": shape})

    def flush(self) -> None:
        """Write the buffer to a shard, then update the report."""
        if not self.shards:
            self.buffer |= {k: word(v) for k, v in zip(VERSION_KEYS, VERSION, strict=True)}
        name = f"{self.stem}-{len(self.shards)}{SUFFIX}"
        save(self.folder / name, self.buffer)
        self.buffer = {}
        self.shards.append(name)
        self.layers += self.buffered_layers
        self.buffered_layers = []
        save_json(self.folder / REPORT, self.report())

    def report(self) -> dict[str, Any]:
        """`uqff_report.json`, schema 1; layers that stayed floats are its fallbacks."""
        floats = [layer for layer in self.layers if layer["stored"] == "unquant"]
        fallbacks = [
            {
                "module": layer["module"],
                "from": self.stem,
                "to": layer["stored"],
                "shape": layer["shape"],
            }
            for layer in floats
        ]
        output = {
            "quant": self.stem,
            "shards": self.shards,
            "layers": len(self.layers),
            "actual_counts": dict(Counter(layer["stored"] for layer in self.layers)),
            "fallback_count": len(fallbacks),
            "fallbacks": fallbacks,
            "layer_details": self.layers,
        }
        base = {} if self.base_model is None else {"base_model": self.base_model}
        generator = {"tool": f"ostro {__version__}"}
        head = {"schema": 1, "generated_by": generator, **base, "uqff_version": VERSION_TEXT}
        return head | {"outputs": [output]}


def write(
    folder: Path,
    stem: str,
    entries: Iterable[Entry],
    *,
    residual: Mapping[str, Tensor],
    config: Mapping[str, Any],
    assets: Mapping[str, Path] | None = None,
    base_model: str | None = None,
    limit: int = LIMIT,
) -> None:
    """Write layers to `<stem>-0.uqff`..., in shards of about `limit` bytes, and the other files.

    `residual` are the tensors outside of layers, by name; `config` becomes config.json; `assets`
    are files to copy, by name (tokenizer.json, chat templates...). Complete shards of an
    interrupted run of the same stem, config and base model are kept.

    Raises UsageError if the folder exists, a layer is repeated, or an earlier run wrote other
    layers; Unsupported for a storage without a UQFF family; CheckpointError if the disk is full.
    """
    if folder.exists():
        raise UsageError(f"{folder} exists; remove it, or choose another folder")
    part = folder.with_name(f".{folder.name}.part")
    written_config = legacy(config)
    output = resume(part, stem, base_model, written_config)
    done, seen = output.done, set[str]()
    for entry in entries:
        if entry.key in seen:
            raise UsageError(f"{entry.key} is repeated among the layers to write")
        seen.add(entry.key)
        if entry.key not in done:
            output.add(entry, limit)
    if stale := done - seen:
        raise UsageError(
            f"{part} has {min(stale)}, which is not among the layers to write; remove it"
        )
    if output.buffer or not output.shards:
        output.flush()
    save(part / RESIDUAL, residual)
    for name, asset in (assets or {}).items():
        (part / name).parent.mkdir(exist_ok=True)
        with atomic_path(part / name) as path:
            shutil.copyfile(asset, path)
    os.rename(part, folder)


def resume(part: Path, stem: str, base_model: str | None, config: Mapping[str, Any]) -> Output:
    """The output of an interrupted run with the same settings, or an empty folder."""
    output = Output(part, stem, base_model)
    try:
        if read_config(part) == json.loads(json.dumps(config)):
            report = read_config(part / REPORT)
            (last,) = report["outputs"]
            here = all((part / name).is_file() for name in last["shards"])
            if here and (last["quant"], report.get("base_model")) == (stem, base_model):
                output.shards, output.layers = last["shards"], last["layer_details"]
                return output
    except (OstroError, LookupError, TypeError, ValueError):
        pass  # no earlier run, or files of another origin
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    save_json(part / "config.json", config)
    return output


def legacy(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json for mistral.rs: without quantization keys, with `rope_theta` at the top."""
    formats = ("quantization_config", "quantization")
    found = {
        key: legacy(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if key not in formats
    }
    rope = found.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" in rope:
        found.setdefault("rope_theta", rope["rope_theta"])
    return found


def size(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def save(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file, wide dtypes first, so that all tensors are aligned."""
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": METADATA}
    end = 0
    for name in order:
        start, end = end, end + tensors[name].nbytes
        shape = list(tensors[name].shape)
        dtype = NAMES[tensors[name].dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    with atomic_path(file) as path, open(path, "wb") as stream:
        stream.write(len(raw).to_bytes(8, "little") + raw)
        for name in order:
            flat = tensors[name].detach().cpu().contiguous().flatten()
            stream.write(flat.view(torch.uint8).numpy().data)
        stream.flush()
        os.fsync(stream.fileno())


def save_json(file: Path, value: Mapping[str, Any]) -> None:
    with atomic_path(file) as path:
        path.write_text(json.dumps(value, indent=2), "utf-8")


@contextmanager
def atomic_path(file: Path) -> Iterator[Path]:
    """A path to write to, which is renamed to `file` on success and removed on failure."""
    path = file.with_name(f"{file.name}.part")
    try:
        yield path
        os.replace(path, file)
    except OSError as error:
        raise CheckpointError(
            f"{file.name} cannot be written: {error.strerror}; free space and run again, which "
            f"continues after the last complete shard, or remove {file.parent}"
        ) from error
    finally:
        path.unlink(missing_ok=True)
