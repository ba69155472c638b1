"""Read and validate the tensors of an HQQ weight: codes, scale, zero and metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Any

import torch
from torch import Tensor

from ostro import Stored
from ostro.quant.hqq import UQFF
from ostro.quant.hqq.naive import PACKING, PACKINGS, Layout

UQFF_FORMAT = 2
"""The id of HQQ in UQFF files."""

UQFF_BITS = (4, 8)
AGAIN = "the file is damaged; download it, or quantize the model again"


@dataclass(frozen=True)
class StoredLayout:
    """A weight as stored in a file.

    layout    the layout of codes, scale and zero
    names     the names of codes, scale and zero
    dtype     the dtype of the tensor of codes
    metadata  all other tensors, which `save` returns unchanged
    """

    layout: Layout
    names: tuple[str, str, str]
    dtype: torch.dtype
    metadata: Mapping[str, Tensor]

    @property
    def format(self) -> str:
        return f"HQQ{self.layout.bits}"

    def with_shape(self, n: int, k: int) -> StoredLayout:
        """The same with another number of rows and columns."""
        return replace(self, layout=self.layout._replace(shape=(n, k)))

    def tensors(self, words: Tensor, scale: Tensor, zero: Tensor) -> dict[str, Tensor]:
        """The tensors of a file, by suffix."""
        named = dict(zip(self.names, (words.view(self.dtype), scale, zero), strict=True))
        (shape,) = (name for name in self.metadata if name.endswith("shape"))
        sizes = torch.tensor(self.layout.shape, dtype=self.metadata[shape].dtype)
        return named | dict(self.metadata) | {shape: sizes}


def read(stored: Stored) -> tuple[Tensor, Tensor, Tensor, StoredLayout]:
    """Words, scale and zero in the shapes of the layout, and the stored layout.

    Raises CheckpointError for unsupported layouts and inconsistent tensors.
    """
    uqff = stored.tensors.keys() == UQFF
    names = ("weight", "weight.scales", "weight.zeros") if uqff else ("W_q", "scale", "zero")
    layout = layout_of_uqff(stored) if uqff else layout_of_hqq(stored)
    codes, scale, zero = (stored.tensors[name].to(stored.device) for name in names)
    if codes.nbytes != prod(layout.words) * layout.packing.word.itemsize:
        raise stored.fault(
            f"has {codes.nbytes} bytes, expected {list(layout.words)} of {layout.packing.word} for "
            f"{list(layout.shape)} weights of {layout.bits} bits; {AGAIN}",
            names[0],
        )
    for name, tensor in zip(names[1:], (scale, zero), strict=True):
        if tuple(tensor.shape) != layout.scales or not tensor.is_floating_point():
            raise stored.fault(
                f"has shape {list(tensor.shape)}, expected floats {list(layout.scales)} for groups "
                f"of {layout.group} along axis {layout.axis}; {AGAIN}",
                name,
            )
    metadata = {name: tensor for name, tensor in stored.tensors.items() if name not in names}
    words = codes.contiguous().flatten().view(layout.packing.word).view(layout.words)
    is_padded = layout.packing.bits > layout.bits and words.numel()
    if is_padded and int(words.max()) >> layout.bits:
        raise stored.fault(f"has codes of more than {layout.bits} bits; {AGAIN}", names[0])
    return words, scale, zero, StoredLayout(layout, names, codes.dtype, metadata)


def layout_of_hqq(stored: Stored) -> Layout:
    """The layout in the metadata that the hqq package saves for a layer."""
    number, packing = stored.number("nbits"), decode_text(stored.tensors["packing"])
    bits = ceil(number)
    if PACKING.get(bits) != packing:
        raise stored.fault(
            f"is {packing!r} for codes of {number:g} bits, expected "
            f"{', '.join(f'{known!r} for {b}' for b, known in PACKING.items())}; {AGAIN}",
            "packing",
        )
    for name in ("quant_scale", "quant_zero"):
        if name in stored.tensors and stored.number(name):
            raise stored.fault(
                "states quantized scales or zeros, which hqq no longer supports either; quantize "
                "the model again",
                name,
            )
    return layout_of(stored, bits, "")


def layout_of_uqff(stored: Stored) -> Layout:
    """The layout in the metadata of a UQFF file."""
    format, bits = (int(stored.number(f"weight.{name}")) for name in ("format", "bits"))
    if format != UQFF_FORMAT or bits not in UQFF_BITS:
        raise stored.fault(
            f"has the tensors of HQQ, but its format is {format} of {bits} bits, expected "
            f"{UQFF_FORMAT} of 4 or 8 bits; {AGAIN}",
            "weight",
        )
    return layout_of(stored, bits, "weight.")


def layout_of(stored: Stored, bits: int, prefix: str) -> Layout:
    """The layout in metadata tensors whose names begin with `prefix`."""
    shape = tuple(stored.tensors[f"{prefix}shape"].flatten().tolist())
    group, axis = (int(stored.number(f"{prefix}{name}")) for name in ("group_size", "axis"))
    if shape != stored.shape:
        raise stored.fault(
            f"is {list(shape)}, but the model's config expects {list(stored.shape)}; the file "
            "belongs to another model, or is damaged",
            f"{prefix}shape",
        )
    if axis not in (0, 1):
        raise stored.fault(f"is {axis}, expected 0 or 1; {AGAIN}", f"{prefix}axis")
    if group < 1 or prod(shape) % group:
        raise stored.fault(
            f"is {group}, which does not divide {prod(shape)} weights; {AGAIN}",
            f"{prefix}group_size",
        )
    channel_wise = f"{prefix}channel_wise"
    if channel_wise in stored.tensors and not stored.number(channel_wise):
        raise stored.fault(
            "is off, but one scale for the whole weight is not supported; quantize the model again "
            "with groups",
            channel_wise,
        )
    return Layout(shape, bits, group, axis, PACKINGS[PACKING[bits]])


def hqq_layout(bits: int, group: int) -> StoredLayout:
    """The layout and metadata of the hqq package for groups along rows and float16 scales."""
    packing = PACKING[bits]
    layout = Layout((0, 0), bits, group, 1, PACKINGS[packing])
    metadata: dict[str, Any] = {
        "nbits": bits,
        "group_size": group,
        "shape": (0, 0),
        "axis": 1,
        "packing": packing,
        "unpack_view_dtype": str(layout.packing.word),
        "compute_dtype": "torch.float16",
        "view_as_float": False,
        "quant_scale": False,
        "quant_zero": False,
        "offload_meta": False,
        "encoded_state_dict": True,
        "stores_quant_config": True,
        "channel_wise": True,
        "optimize": True,
        "round_zero": False,
    }
    metadata = {name: encode(value) for name, value in metadata.items()}
    return StoredLayout(layout, ("W_q", "scale", "zero"), layout.packing.word, metadata)


def encode(value: Any) -> Tensor:
    """Encode a metadata value as the hqq package does for safetensors files."""
    if isinstance(value, str):
        return torch.tensor(list(value.encode()), dtype=torch.uint8)
    if isinstance(value, tuple):
        return torch.tensor(value)
    return torch.tensor(value, dtype=torch.uint8 if isinstance(value, bool) else torch.int32)


def decode_text(codes: Tensor) -> str:
    """Decode a string from a tensor of character codes."""
    return bytes(codes.flatten().to(torch.uint8).tolist()).decode("latin-1")
