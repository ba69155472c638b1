"""Reading an HQQ weight: its codes, scale, zero and metadata."""

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
"""The number of HQQ in a UQFF file."""

UQFF_BITS = (4, 8)
AGAIN = "the file is damaged; download it, or quantize the model again"


@dataclass(frozen=True)
class Form:
    """The form of a weight in a file: its layout, the names of codes, scale and zero, the type in
    which codes are saved, and the metadata tensors, which `save` returns unchanged.
    """

    layout: Layout
    names: tuple[str, str, str]
    saved: torch.dtype
    beside: Mapping[str, Tensor]

    @property
    def format(self) -> str:
        return f"HQQ{self.layout.bits}"

    def of(self, n: int, k: int) -> Form:
        """This form with another number of rows and columns."""
        return replace(self, layout=self.layout._replace(shape=(n, k)))

    def tensors(self, words: Tensor, scale: Tensor, zero: Tensor) -> dict[str, Tensor]:
        """The tensors of a file, by suffix."""
        named = dict(zip(self.names, (words.view(self.saved), scale, zero), strict=True))
        (shape,) = (name for name in self.beside if name.endswith("shape"))
        sizes = torch.tensor(self.layout.shape, dtype=self.beside[shape].dtype)
        return named | dict(self.beside) | {shape: sizes}


def read(stored: Stored) -> tuple[Tensor, Tensor, Tensor, Form]:
    """Words, scale and zero, each in the shape that the layout gives it, and the form."""
    uqff = stored.tensors.keys() == UQFF
    names = ("weight", "weight.scales", "weight.zeros") if uqff else ("W_q", "scale", "zero")
    layout = layout_of_uqff(stored) if uqff else layout_of_hqq(stored)
    held, scale, zero = (stored.tensors[name].to(stored.device) for name in names)
    if held.nbytes != prod(layout.words) * layout.packing.word.itemsize:
        raise stored.fault(
            f"has {held.nbytes} bytes, expected {list(layout.words)} of {layout.packing.word} for "
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
    beside = {name: tensor for name, tensor in stored.tensors.items() if name not in names}
    words = held.contiguous().flatten().view(layout.packing.word).view(layout.words)
    wide = layout.packing.bits > layout.bits and words.numel()
    if wide and int(words.max()) >> layout.bits:
        raise stored.fault(f"has codes of more than {layout.bits} bits; {AGAIN}", names[0])
    return words, scale, zero, Form(layout, names, held.dtype, beside)


def layout_of_hqq(stored: Stored) -> Layout:
    """The layout in the state that the hqq package saves of a layer."""
    number, packing = stored.number("nbits"), text(stored.tensors["packing"])
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
                "marks scales or zeros as quantized, which hqq no longer supports either; quantize "
                "the model again",
                name,
            )
    return layout_of(stored, bits, "")


def layout_of_uqff(stored: Stored) -> Layout:
    """The layout in the metadata of a UQFF file."""
    format, bits = (int(stored.number(f"weight.{name}")) for name in ("format", "bits"))
    if format != UQFF_FORMAT or bits not in UQFF_BITS:
        raise stored.fault(
            f"comes with the tensors of HQQ, but its format is {format} of {bits} bits, expected "
            f"{UQFF_FORMAT} of 4 or 8 bits; {AGAIN}",
            "weight",
        )
    return layout_of(stored, bits, "weight.")


def layout_of(stored: Stored, bits: int, front: str) -> Layout:
    """The layout from metadata whose names begin with `front`."""
    shape = tuple(stored.tensors[f"{front}shape"].flatten().tolist())
    group, axis = (int(stored.number(f"{front}{name}")) for name in ("group_size", "axis"))
    if shape != stored.shape:
        raise stored.fault(
            f"is {list(shape)}, but the model's config expects {list(stored.shape)}; the file is "
            "of another model, or damaged",
            f"{front}shape",
        )
    if axis not in (0, 1):
        raise stored.fault(f"is {axis}, expected 0 or 1; {AGAIN}", f"{front}axis")
    if group < 1 or prod(shape) % group:
        raise stored.fault(
            f"is {group}, which does not divide {prod(shape)} weights; {AGAIN}",
            f"{front}group_size",
        )
    channel_wise = f"{front}channel_wise"
    if channel_wise in stored.tensors and not stored.number(channel_wise):
        raise stored.fault(
            "is off: one scale for the whole weight is not supported; quantize the model again in "
            "groups",
            channel_wise,
        )
    return Layout(shape, bits, group, axis, PACKINGS[PACKING[bits]])


def form(bits: int, group: int) -> Form:
    """The form in which the hqq package saves groups along rows, with float16 scales."""
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
    beside = {name: encoded(value) for name, value in metadata.items()}
    return Form(layout, ("W_q", "scale", "zero"), layout.packing.word, beside)


def encoded(value: Any) -> Tensor:
    """A value as the tensor that the hqq package saves in safetensors files."""
    if isinstance(value, str):
        return torch.tensor(list(value.encode()), dtype=torch.uint8)
    if isinstance(value, tuple):
        return torch.tensor(value)
    return torch.tensor(value, dtype=torch.uint8 if isinstance(value, bool) else torch.int32)


def text(codes: Tensor) -> str:
    """A string that was saved as a tensor of character codes."""
    return bytes(codes.flatten().to(torch.uint8).tolist()).decode("latin-1")
