"""The projector (mmproj) of a GGUF model: its tower, and what brings that to the text's width.

llama.cpp splits a model that sees or hears in two files. In the second `general.architecture` is
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
"""The types of projectors whose towers have q, k and v in one; the converter splits them."""

QKV = re.compile(r"(v\.blk\.\d+\.attn_)q(\.\w+)")
FFN = re.compile(r"v\.blk\.\d+\.ffn_(up|down)\.\w+")


@dataclass(frozen=True)
class Whole:
    """A tensor that lies in several: rows below each other, or frames of a kernel side by side."""

    info: TensorInfo
    parts: tuple[TensorInfo, ...]
    frames: bool = False


class Projector(MappedContainer):
    """A projector's file. Tensors are those of its tower: what the converter splits is whole, what
    files of before May 2025 call by each other's names has its own.
    """

    def __init__(self, file: Path) -> None:
        """Raises CheckpointError where it is none that can be told from others."""
        places, metadata = Header(MappedFile(file)).read()
        if is_projector(metadata) and not any(key.endswith(f".{PROJECTOR}") for key in metadata):
            raise CheckpointError(f"{file.name}: clip.{PROJECTOR} is missing; convert it again")
        super().__init__(file, named(places, metadata), metadata)
        self.wholes = {whole.info.name: whole for whole in wholes(self.tensors, metadata)}
        for whole in self.wholes.values():
            for part in whole.parts:
                del self.tensors[part.name]
        self.tensors |= {name: whole.info for name, whole in self.wholes.items()}

    def read(self, name: str) -> torch.Tensor:
        """As `Container.read`."""
        if name not in self.wholes:
            return super().read(name)
        import torch

        whole = self.wholes[name]
        parts = [super(Projector, self).read(part.name) for part in whole.parts]
        return torch.stack(parts, 2) if whole.frames else torch.cat(parts)

    def fits(self, text: Mapping[str, Any]) -> bool:
        """Whether what it makes is as wide as the model whose metadata is `text`."""
        width = text.get(f"{text.get('general.architecture')}.embedding_length")
        ends = (info for name, info in self.tensors.items() if name.startswith("mm."))
        return any(width in info.shape for info in ends)


def is_projector(metadata: Mapping[str, Any]) -> bool:
    return metadata.get("general.architecture") == "clip"


def named(
    places: Mapping[str, TensorLocation], metadata: Mapping[str, Any]
) -> dict[str, TensorLocation]:
    """Tensors by their names; where "ffn_down" widens, it and "ffn_up" change names."""
    first = places.get("v.blk.0.ffn_down.weight")
    width = metadata.get("clip.vision.embedding_length")
    if first is None or first.info.shape[-1] != width or first.info.shape[0] == width:
        return dict(places)
    found = {}
    for name, place in places.items():
        if match := FFN.fullmatch(name):
            other = {"up": "down", "down": "up"}[match[1]]
            name = f"{name[: match.start(1)]}{other}{name[match.end(1) :]}"
            place = replace(place, info=replace(place.info, name=name))
        found[name] = place
    return found


def wholes(tensors: Mapping[str, TensorInfo], metadata: Mapping[str, Any]) -> list[Whole]:
    """What lies in several tensors. Raises CheckpointError where these do not fit together."""
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
) -> Whole:
    alike = {(part.shape, part.format) for part in parts}
    if len(parts) != (2 if frames else 3) or len(alike) != 1:
        there = ", ".join(f"{p.name} {p.format} {list(p.shape)}" for p in parts) or "one part"
        raise CheckpointError(
            f"{name} should lie in {2 if frames else 3} tensors of one shape and format, and there "
            f"is {there}; convert the model again"
        )
    nbytes = sum(part.nbytes for part in parts)
    return Whole(replace(parts[0], name=name, shape=shape, nbytes=nbytes), parts, frames)
