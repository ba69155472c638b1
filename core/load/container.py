"""Containers of named tensors: the common interface of checkpoint formats, over memory maps.

Listing a container needs neither torch nor the tensors' bytes. A large tensor is read as a view of
a memory map: the OS loads a page when it is first accessed.

A file must not be truncated while it is in use. `MappedFile.read` detects a truncated file, but a
page that disappears later kills the process with SIGBUS, as with any memory map. To replace a
checkpoint, rename a new file over it; never write into it.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import sys
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ostro.core.errors import CheckpointError, ConfigError, ModelNotFound, nearest
from ostro.core.paths import open_regular, read_regular, reason_of
from ostro.core.records import TensorInfo

if TYPE_CHECKING:
    import torch

DTYPES: Mapping[str, tuple[str, int]] = {
    "BOOL": ("bool", 1),
    "U8": ("uint8", 1),
    "I8": ("int8", 1),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 1),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 1),
    "F8_E8M0": ("float8_e8m0fnu", 1),
    "U16": ("uint16", 2),
    "I16": ("int16", 2),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "U32": ("uint32", 4),
    "I32": ("int32", 4),
    "F32": ("float32", 4),
    "U64": ("uint64", 8),
    "I64": ("int64", 8),
    "F64": ("float64", 8),
    "C64": ("complex64", 8),
}
"""Formats with a torch dtype: its name and the bytes per element."""

# Bytes of the largest tensor that is copied: Linux maps 64 KiB of a file around each first access,
# so the norms between the weights would keep a quarter of a file in memory.
SMALL = 64 << 10

CONFIG_BYTES = 10_000_000
CONFIG_DEPTH = 100
MAX_DIMS = 16
MAX_NAME = 1024

# Without it, Linux refuses a private map of a file larger than memory, although nothing is written.
_MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0

logger = logging.getLogger(__name__)


class Container(Protocol):
    """Named tensors of a file or a folder of files, read on demand."""

    @property
    def path(self) -> Path:
        """The file or folder that was opened."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """The tensors by name, without their bytes."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of the file: strings in safetensors, typed values in GGUF."""

    def read(self, name: str) -> torch.Tensor:
        """The tensor `name` on the CPU, without a copy if its bytes are aligned.

        Formats without a torch dtype are returned as uint8 `[*shape[:-1], bytes per row]`. Raises
        CheckpointError if the tensor does not exist or the file was truncated.
        """

    def config(self) -> dict[str, Any] | None:
        """The parsed config.json, or None without one (GGUF: derive it from `metadata`)."""

    def close(self) -> None:
        """Close the files. Tensors already read stay valid: each keeps its map alive."""


class ConfigReader(Protocol):
    """`Architecture.gguf_config`: a config.json from the header of a GGUF file."""

    def __call__(self, container: Container, /) -> Mapping[str, Any]: ...


class CheckpointOpener(Protocol):
    """`Checkpoint.open`: opens a file or folder that the record claims; reads headers only."""

    def __call__(self, path: Path, /) -> Container: ...


class MappedFile:
    """A file's bytes, mapped copy-on-write: a write to a tensor never reaches the file.

    A tensor without a torch dtype has a map of its own, which ends with the tensor: its bytes leave
    the memory of the process once they have been converted. Tensors of at most `SMALL` bytes are
    copies.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open_regular(path) as file:
                self.size = os.fstat(file.fileno()).st_size
                self._map = _map(file.fileno(), self.size) if self.size else None
                self._descriptor = os.dup(file.fileno())
                weakref.finalize(self, os.close, self._descriptor)
        except FileNotFoundError:
            raise ModelNotFound(f"{path}: no such file") from None
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path.name}: cannot be mapped: {reason_of(error)}") from error
        self.data: np.ndarray[Any, np.dtype[np.uint8]] = np.frombuffer(self._map or b"", np.uint8)

    def read(self, info: TensorInfo, start: int) -> torch.Tensor:
        """The tensor in the `info.nbytes` bytes from `start`; see `Container.read`."""
        import torch

        self._refuse_if_shrunk(info.name)
        dtype, itemsize = DTYPES.get(info.format, ("uint8", 1))
        shape = info.shape if info.format in DTYPES else _packed_shape(info)
        if not info.nbytes:
            return torch.empty(shape, dtype=getattr(torch, dtype))
        raw = torch.from_numpy(self.data[start : start + info.nbytes])
        if info.nbytes <= SMALL or info.format not in DTYPES:
            first = start // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
            pages = _map(self._descriptor, start - first + info.nbytes, first)
            raw = torch.frombuffer(pages, dtype=torch.uint8)[start - first :]
        if info.format == "BOOL":
            # A torch.bool byte other than 0 and 1 is undefined behaviour.
            return (raw != 0).view(shape)
        raw = raw.clone() if info.nbytes <= SMALL or start % itemsize else raw
        return raw.view(getattr(torch, dtype)).view(shape)

    def _refuse_if_shrunk(self, tensor: str) -> None:
        if self._map is not None and (size := self._map.size()) < self.size:
            raise CheckpointError(
                f"{self.path.name}: tensor {tensor!r}: the file was truncated from {self.size} to "
                f"{size} bytes after it was opened; restore it and load the model again"
            )


def _map(descriptor: int, size: int, start: int = 0) -> mmap.mmap:
    if sys.platform == "win32":
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY, offset=start)
    flags, access = mmap.MAP_PRIVATE | _MAP_NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
    return mmap.mmap(descriptor, size, flags=flags, prot=access, offset=start)


def _packed_shape(info: TensorInfo) -> tuple[int, ...]:
    rows = prod(info.shape[:-1])
    return (*info.shape[:-1], info.nbytes // rows if rows else 0)


@dataclass(frozen=True)
class TensorLocation:
    """A tensor and where its bytes are."""

    info: TensorInfo
    file: MappedFile
    start: int


class MappedContainer:
    """A `Container` over memory maps, which the reader of a format returns."""

    def __init__(
        self,
        path: Path,
        locations: Mapping[str, TensorLocation],
        metadata: Mapping[str, Any],
        config: Path | Mapping[str, Any] | None = None,
    ) -> None:
        """`config` is the path of config.json, or its content."""
        self.path = path
        self.metadata = metadata
        self.tensors = {name: location.info for name, location in locations.items()}
        self._locations = locations
        self._config = config

    def read(self, name: str) -> torch.Tensor:
        """As `Container.read`."""
        try:
            location = self._locations[name]
        except KeyError:
            if name in self.tensors:
                raise CheckpointError(f"{self.path.name}: is closed; open it again") from None
            near = nearest(name, self.tensors)
            raise CheckpointError(f"{self.path.name}: no tensor {name!r}{near}") from None
        return location.file.read(location.info, location.start)

    def config(self) -> dict[str, Any] | None:
        """As `Container.config`."""
        if self._config is None or isinstance(self._config, Mapping):
            return None if self._config is None else dict(self._config)
        return read_config(self._config) if self._config.exists() else None

    def close(self) -> None:
        """As `Container.close`."""
        self._locations = {}


def tensor_fault(name: str, shape: tuple[int, ...]) -> str | None:
    """Describe what is invalid in a tensor's name or shape, or return None.

    Names are printed and may become file names. Element counts must fit 63 bits even if one
    dimension is 0.
    """
    if not name or len(name) > MAX_NAME:
        return f"its name must have 1 to {MAX_NAME} characters, not {len(name)}"
    if not name.isprintable():
        return "its name contains control characters"
    if ".." in name.replace("\\", "/").split("/"):
        return "its name is a path that leaves its folder"
    if len(shape) > MAX_DIMS:
        return f"it has {len(shape)} dimensions; at most {MAX_DIMS} are supported"
    if prod(max(n, 1) for n in shape) >= 1 << 63:
        return f"its shape {list(shape)} overflows"
    return None


def read_config(path: Path, *, missing_ok: bool = False) -> dict[str, Any]:
    """Read a config.json, given its path or its folder, or another JSON file of a checkpoint. The
    content is untrusted.

    Raises ModelNotFound if the file does not exist (with `missing_ok`, returns {}), ConfigError if
    it is not a JSON object of at most 10 MB and 100 levels. `auto_map`, which names Python files of
    the checkpoint, is removed: code of a checkpoint is never imported.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        raw = read_regular(file, CONFIG_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        if missing_ok:
            return {}
        found = sorted(p.name for p in file.parent.iterdir()) if file.parent.is_dir() else []
        listing = ", ".join(found[:10]) or "nothing"
        raise ModelNotFound(f"no {file.name} in {file.parent}; found: {listing}") from None
    except OSError as error:
        raise ConfigError(f"{file.name}: {error.strerror}") from error
    config = _parse_config(file.name, raw)
    if config.pop("auto_map", None) is not None:
        logger.warning(
            "%s: auto_map is ignored: code in a checkpoint is never run; "
            "a model that needs it requires a plugin",
            file.name,
        )
    return config


def _parse_config(name: str, raw: bytes) -> dict[str, Any]:
    deep = ConfigError(f"{name}: nested more than {CONFIG_DEPTH} levels deep")
    try:
        config = json.loads(raw)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise ConfigError(f"{name}: {where}: not JSON: {error.msg}") from None
    except RecursionError:
        raise deep from None
    except ValueError as error:
        # Not UTF-8, or an integer with more digits than Python's limit.
        raise ConfigError(f"{name}: not JSON: {error}") from None
    if not isinstance(config, dict):
        kind = type(config).__name__
        raise ConfigError(f"{name}: line 1 column 1: must be an object, not a {kind}")
    if any(depth > CONFIG_DEPTH for depth in _depths(config)):
        raise deep
    return config


def _depths(value: Any) -> Iterator[int]:
    """The depth of every object and list within `value`, which has depth 1, without recursion."""
    todo = [(value, 1)]
    while todo:
        node, depth = todo.pop()
        if isinstance(node, dict | list):
            yield depth
            inner = node.values() if isinstance(node, dict) else node
            todo.extend((child, depth + 1) for child in inner)
