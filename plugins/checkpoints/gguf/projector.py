"""The projector (mmproj) of a multimodal GGUF model: the media encoder and its projection.

llama.cpp stores a multimodal model in two files. In the second `general.architecture` is
"clip", keys begin with "clip." and tensors with "v.", "a." and "mm.". Source: llama.cpp's converter
(class MmprojModel) and tools/mtmd/clip.cpp, 2026.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostro import TensorInfo
from ostro.checkpoints import PROJECTOR, MappedContainer, MappedFile, TensorLocation
from ostro.errors import CheckpointError
from ostro.plugins.checkpoints.gguf.header import Header

if TYPE_CHECKING:
    import torch

FRAMES = "v.patch_embd.weight"
WHOLE_QKV = ("qwen2vl_merger", "qwen2.5vl_merger")
"""Projector types whose encoders have a fused qkv; the converter splits it."""

QKV = re.compile(r"(v\.blk\.\d+\.attn_)q(\.\w+)")
FFN = re.compile(r"v\.blk\.\d+\.ffn_(up|down)\.\w+")


@dataclass(frozen=True)
class SplitTensor:
    """A tensor that the file stores in parts: groups of rows, or frames of a kernel."""

    info: TensorInfo
    parts: tuple[TensorInfo, ...]
    frames: bool = False


class Projector(MappedContainer):
    """A projector's file, with the tensors of the original encoder.

    Tensors that the converter splits are joined; `ffn_up` and `ffn_down`, which files from before
    May 2025 exchange, have their own names.
    """

    def __init__(self, file: Path) -> None:
        """Raises CheckpointError if the projector type is missing."""
        locations, metadata = Header(MappedFile(file)).read()
        if is_projector(metadata) and not any(key.endswith(f".{PROJECTOR}") for key in metadata):
            raise CheckpointError(f"{file.name}: clip.{PROJECTOR} is missing; convert it again")
        super().__init__(file, named(locations, metadata), metadata)
        self.split_tensors = {
            tensor.info.name: tensor for tensor in split_tensors(self.tensors, metadata)
        }
        for tensor in self.split_tensors.values():
            for part in tensor.parts:
                del self.tensors[part.name]
        self.tensors |= {name: tensor.info for name, tensor in self.split_tensors.items()}

    def read(self, name: str) -> torch.Tensor:
        """As `Container.read`."""
        if name not in self.split_tensors:
            return super().read(name)
        import torch

        tensor = self.split_tensors[name]
        parts = [super(Projector, self).read(part.name) for part in tensor.parts]
        return torch.stack(parts, 2) if tensor.frames else torch.cat(parts)

    def fits(self, text: Mapping[str, Any]) -> bool:
        """Whether the output width is the hidden size of the model with the metadata `text`."""
        width = text.get(f"{text.get('general.architecture')}.embedding_length")
        ends = (info for name, info in self.tensors.items() if name.startswith("mm."))
        return any(width in info.shape for info in ends)


def is_projector(metadata: Mapping[str, Any]) -> bool:
    return metadata.get("general.architecture") == "clip"


def named(
    locations: Mapping[str, TensorLocation], metadata: Mapping[str, Any]
) -> dict[str, TensorLocation]:
    """Tensors by name; if "ffn_down" has the shape of "ffn_up", the two are exchanged."""
    first = locations.get("v.blk.0.ffn_down.weight")
    width = metadata.get("clip.vision.embedding_length")
    if first is None or first.info.shape[-1] != width or first.info.shape[0] == width:
        return dict(locations)
    found = {}
    for name, location in locations.items():
        if match := FFN.fullmatch(name):
            other = {"up": "down", "down": "up"}[match[1]]
            name = f"{name[: match.start(1)]}{other}{name[match.end(1) :]}"
            location = replace(location, info=replace(location.info, name=name))
        found[name] = location
    return found


def split_tensors(
    tensors: Mapping[str, TensorInfo], metadata: Mapping[str, Any]
) -> list[SplitTensor]:
    """The tensors that the file stores in parts. Raises CheckpointError for parts that do
    not fit.
    """
    found = []
    if second := tensors.get(f"{FRAMES}.1"):
        parts = tuple(tensors[name] for name in (FRAMES, f"{FRAMES}.1") if name in tensors)
        n, *rest = second.shape
        found.append(joined(FRAMES, parts, (n, *rest[:1], 2, *rest[1:]), frames=True))
    if metadata.get("clip.projector_type") in WHOLE_QKV:
        for match in filter(None, map(QKV.fullmatch, tensors)):
            names = [f"{match[1]}{letter}{match[2]}" for letter in "qkv"]
            parts = tuple(tensors[name] for name in names if name in tensors)
            n, *rest = tensors[match[0]].shape
            found.append(joined(f"{match[1]}qkv{match[2]}", parts, (3 * n, *rest)))
    return found


def joined(
    name: str, parts: tuple[TensorInfo, ...], shape: tuple[int, ...], *, frames: bool = False
) -> SplitTensor:
    alike = {(part.shape, part.format) for part in parts}
    if len(parts) != (2 if frames else 3) or len(alike) != 1:
        listed = ", ".join(f"{p.name} {p.format} {list(p.shape)}" for p in parts) or "one part"
        raise CheckpointError(
            f"{name}: expected {2 if frames else 3} tensors of one shape and format, found "
            f"{listed}; "
            "convert the model again"
        )
    nbytes = sum(part.nbytes for part in parts)
    return SplitTensor(replace(parts[0], name=name, shape=shape, nbytes=nbytes), parts, frames)
