"""The projector file (mmproj) of a model folder with media: encoder and projection, in floats.

Source: llama.cpp's converter (class MmprojModel and its subclasses, 2026).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from ostro.checkpoints import PROJECTOR as TYPE
from ostro.checkpoints import read_config
from ostro.errors import ConfigError
from ostro.plugins.checkpoints.gguf.conversion import FLOATS, PROJECTOR, Conversion
from ostro.plugins.checkpoints.gguf.entries import TensorEntry
from ostro.plugins.checkpoints.gguf.keys import ARCHITECTURE
from ostro.plugins.checkpoints.gguf.projector import FRAMES, WHOLE_QKV

FULL = ("patch_embd.weight", "patch_merger.weight", "position_embd.weight", "conv_dw.weight")
"""Ends of matrices that llama.cpp reads in float32 only."""

SETTINGS = ("preprocessor_config.json", "processor_config.json")
"""The files of a processor's settings; the second has those of images below "image_processor"."""


class MediaProjector:
    """The encoder and projection of a model folder with media; `keys` are those of its config."""

    def __init__(self, conversion: Conversion, keys: Mapping[str, Any]) -> None:
        self.conversion, self.saving = conversion, conversion.saving
        self.keys = {ARCHITECTURE: "clip", "general.type": "mmproj", **keys}
        self.kind = keys.get(f"clip.{TYPE}")

    def entries(self) -> list[TensorEntry]:
        """The tensors of the file."""
        names = [name for name in self.conversion.parts if name.startswith(PROJECTOR)]
        return [entry for name in names for entry in self.split(name)]

    def split(self, name: str) -> Iterator[TensorEntry]:
        """The tensors of the file for a tensor of the encoder: frames and q, k, v are apart."""
        theirs, shape = name.removeprefix(PROJECTOR), self.conversion.shape(name)
        if theirs == FRAMES and len(shape) == 5:
            for i, end in enumerate(("", ".1")):
                yield self.entry(name, f"{theirs}{end}", (*shape[:2], *shape[3:]), frame=i)
        elif ".attn_qkv." in theirs and self.kind in WHOLE_QKV:
            for i, letter in enumerate("qkv"):
                part = theirs.replace("attn_qkv", f"attn_{letter}")
                yield self.entry(name, part, (shape[0] // 3, *shape[1:]), third=i)
        else:
            yield self.entry(name, theirs, shape)

    def entry(self, name: str, theirs: str, shape: tuple[int, ...], **part: int) -> TensorEntry:
        source = self.conversion.source_format(name)
        format, reason = self.float_format(name, theirs, shape, source)
        make = partial(self.read, name, format, **part)
        return TensorEntry(theirs, shape, format, make, source, reason)

    def float_format(
        self, name: str, theirs: str, shape: tuple[int, ...], source: str
    ) -> tuple[str, str]:
        """The format of a tensor, with a reason."""
        if self.kind == "gemma3" and theirs == "mm.input_projection.weight":
            return "F16", "llama.cpp reads this projection in F16"
        if len(shape) == 3 and ".conv1d." in theirs:
            return "F16", "llama.cpp convolves sound in F16"
        if len(shape) in (1, 4) or not theirs.endswith(".weight") or theirs.endswith(FULL):
            return "F32", "" if source == "F32" else "vectors, norms and convolutions are F32"
        if self.saving.dtype is not None:
            return next(key for key, dtype in FLOATS.items() if dtype == self.saving.dtype), ""
        if source in FLOATS and self.conversion.is_float(name):
            return source, ""
        return "BF16", "dequantized"

    def read(
        self, name: str, format: str, frame: int | None = None, third: int | None = None
    ) -> Tensor:
        """A tensor, or one of its frames or thirds, in a float format."""
        tensor = self.conversion.read(name)
        if frame is not None:
            tensor = tensor[:, :, frame]
        if third is not None:
            tensor = tensor.chunk(3)[third]
        return tensor.to(FLOATS[format])


def preprocessor(folder: Path) -> Mapping[str, Any]:
    """The settings of a folder's processor. Raises ConfigError for a file that is no object."""
    found: dict[str, Any] = {}
    for name in SETTINGS:
        stated = read_config(folder / name, missing_ok=True)
        inner = stated.get("image_processor") or {}
        if not isinstance(inner, dict):
            raise ConfigError(f"{name}: image_processor={inner!r:.80} is not an object")
        found |= {**stated, **inner}
    return found
