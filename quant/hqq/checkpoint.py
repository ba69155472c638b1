"""What files hold of an HQQ weight: codes, scale and zero, and beside them what these mean."""

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
"""What a UQFF file calls HQQ."""

UQFF_BITS = (4, 8)
AGAIN = "the file is damaged, download it again or quantize the model again"


@dataclass(frozen=True)
class Form:
    """How a file holds a weight: its layout, the names of codes, scale and zero, the type in which
    codes are saved, and the small tensors that say all that, which go back as they came.
    """

    layout: Layout
    names: tuple[str, str, str]
    saved: torch.dtype
    beside: Mapping[str, Tensor]

    @property
    def format(self) -> str:
        return f"HQQ{self.layout.bits}"

    def of(self, n: int, k: int) -> Form:
        """The same of another number of rows and columns."""
        return replace(self, layout=self.layout._replace(shape=(n, k)))

    def tensors(self, words: Tensor, scale: Tensor, zero: Tensor) -> dict[str, Tensor]:
        """The tensors of a file, by suffix."""
        named = dict(zip(self.names, (words.view(self.saved), scale, zero), strict=True))
        (shape,) = (name for name in self.beside if name.endswith("shape"))
        said = torch.tensor(self.layout.shape, dtype=self.beside[shape].dtype)
        return named | dict(self.beside) | {shape: said}


def read(stored: Stored) -> tuple[Tensor, Tensor, Tensor, Form]:
    """Words, scale and zero, each in the shape that the layout gives it, and the form."""
    uqff = stored.tensors.keys() == UQFF
    names = ("weight", "weight.scales", "weight.zeros") if uqff else ("W_q", "scale", "zero")
    layout = layout_of_uqff(stored) if uqff else layout_of_hqq(stored)
    held, scale, zero = (stored.tensors[name].to(stored.device) for name in names)
    if held.nbytes != prod(layout.words) * layout.packing.word.itemsize:
        raise stored.fault(
            f"has {held.nbytes} bytes, where codes of {layout.bits} bits for {list(layout.shape)} "
            f"weights are {list(layout.words)} of {layout.packing.word}; {AGAIN}",
            names[0],
        )
    for name, tensor in zip(names[1:], (scale, zero), strict=True):
        if tuple(tensor.shape) != layout.scales or not tensor.is_floating_point():
            raise stored.fault(
                f"has shape {list(tensor.shape)}, where groups of {layout.group} along axis "
                f"{layout.axis} have {list(layout.scales)} floats; {AGAIN}",
                name,
            )
    beside = {name: tensor for name, tensor in stored.tensors.items() if name not in names}
    words = held.contiguous().flatten().view(layout.packing.word).view(layout.words)
    wide = layout.packing.bits > layout.bits and words.numel()
    if wide and int(words.max()) >> layout.bits:
        raise stored.fault(f"holds codes of more than {layout.bits} bits; {AGAIN}", names[0])
    return words, scale, zero, Form(layout, names, held.dtype, beside)


def layout_of_hqq(stored: Stored) -> Layout:
    """The layout that the hqq package's state of a layer speaks of."""
    number, packing = stored.number("nbits"), text(stored.tensors["packing"])
    bits = ceil(number)
    if PACKING.get(bits) != packing:
        raise stored.fault(
            f"says {packing!r} of codes of {number:g} bits; known are "
            f"{', '.join(f'{known!r} of {b}' for b, known in PACKING.items())}; {AGAIN}",
            "packing",
        )
    for name in ("quant_scale", "quant_zero"):
        if name in stored.tensors and stored.number(name):
            raise stored.fault(
                "says that scales or zeros are quantized, which hqq itself has given up; quantize "
                "the model again",
                name,
            )
    return layout_of(stored, bits, "")


def layout_of_uqff(stored: Stored) -> Layout:
    """The layout that a UQFF file speaks of."""
    format, bits = (int(stored.number(f"weight.{name}")) for name in ("format", "bits"))
    if format != UQFF_FORMAT or bits not in UQFF_BITS:
        raise stored.fault(
            f"has tensors of HQQ beside it, but the file says format {format} and {bits} bits, "
            f"where HQQ is {UQFF_FORMAT} and has 4 or 8; {AGAIN}",
            "weight",
        )
    return layout_of(stored, bits, "weight.")


def layout_of(stored: Stored, bits: int, front: str) -> Layout:
    """What both forms say alike, the names of one beginning with `front`."""
    shape = tuple(stored.tensors[f"{front}shape"].flatten().tolist())
    group, axis = (int(stored.number(f"{front}{name}")) for name in ("group_size", "axis"))
    if shape != stored.shape:
        raise stored.fault(
            f"says {list(shape)}, where the model's config asks for {list(stored.shape)}; they are "
            "of different models, or one is damaged",
            f"{front}shape",
        )
    if axis not in (0, 1):
        raise stored.fault(f"is {axis}, neither 0 nor 1; {AGAIN}", f"{front}axis")
    if group < 1 or prod(shape) % group:
        raise stored.fault(
            f"is {group}, of which {prod(shape)} weights are no whole groups; {AGAIN}",
            f"{front}group_size",
        )
    channel_wise = f"{front}channel_wise"
    if channel_wise in stored.tensors and not stored.number(channel_wise):
        raise stored.fault(
            "says that one scale holds for the whole weight, which is not supported; quantize the "
            "model again in groups",
            channel_wise,
        )
    return Layout(shape, bits, group, axis, PACKINGS[PACKING[bits]])


def form(bits: int, group: int) -> Form:
    """The form that the hqq package saves of groups along rows, halves and no views."""
    packing = PACKING[bits]
    layout = Layout((0, 0), bits, group, 1, PACKINGS[packing])
    said: dict[str, Any] = {
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
    beside = {name: encoded(value) for name, value in said.items()}
    return Form(layout, ("W_q", "scale", "zero"), layout.packing.word, beside)


def encoded(value: Any) -> Tensor:
    """A value as the tensor that the hqq package makes of it for safetensors."""
    if isinstance(value, str):
        return torch.tensor(list(value.encode()), dtype=torch.uint8)
    if isinstance(value, tuple):
        return torch.tensor(value)
    return torch.tensor(value, dtype=torch.uint8 if isinstance(value, bool) else torch.int32)


def text(codes: Tensor) -> str:
    """A name that was saved letter by letter."""
    return bytes(codes.flatten().to(torch.uint8).tolist()).decode("latin-1")
