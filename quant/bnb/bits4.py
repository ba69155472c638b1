"""Bits4: an NF4 or FP4 weight in planes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import ceil, gcd, prod
from typing import Any, Self

import torch
from torch import Tensor

from ostro import Storage, Stored
from ostro.nn import Dequantized
from ostro.quant.bnb import STATE, naive
from ostro.quant.planes.storage import CELL, Packed, Planes, pack_codes, unpack_codes

KINDS = ("nf4", "fp4")
AGAIN = "the file is damaged, download or convert it again"


@dataclass(frozen=True)
class Held:
    """What a file holds of a weight: bytes of two codes, 16 values, and a scale for each block."""

    kind: str
    packed: Tensor
    quant_map: Tensor
    absmax: Tensor
    block: int


class Bits4(Packed):
    """A weight [n, k], or [experts, n, k]; the map of its codes is the table of its planes.

    Groups are the largest that divide rows and blocks. `beside` are the tensors beside the weight
    as they were read, which go back as they came; where it was cut or joined, `save` gives floats
    for absmax, one for each group.
    """

    beside: Mapping[str, Tensor]
    stored_as: torch.dtype = torch.uint8

    @classmethod
    def read(cls, stored: Stored) -> Storage:
        """From "weight", "weight.absmax", "weight.quant_map" and the state in JSON."""
        held = held_of(stored)
        n, k = stored.shape
        beside = {name: t for name, t in stored.tensors.items() if name != "weight"}
        if k % CELL:
            return Dequantized(
                stored,
                held.kind.upper(),
                (n, k),
                {"packed": held.packed, "quant_map": held.quant_map, "absmax": held.absmax},
                partial(naive.dequantize_rows, shape=(n, k), block=held.block),
                f"{k} columns are no multiple of {CELL}",
            )
        codes = naive.unpack(held.packed, 0, n * k).view(n, k)
        first = torch.arange(0, n * k, gcd(k, held.block), device=held.absmax.device)
        planes = Planes(
            codes=pack_codes(codes, 4),
            scale=held.absmax[first // held.block].view(n, -1),
            table=held.quant_map,
        )
        made = cls(held.kind.upper(), planes, stored.dtype)
        made.beside, made.stored_as = beside, stored.tensors["weight"].dtype
        return made

    def of(self, planes: Planes) -> Self:
        made = super().of(planes)
        made.beside = {}
        return made

    def save(self) -> dict[str, Tensor]:
        codes = unpack_codes(self.planes.codes).flatten()
        weight = naive.pack(codes).view(self.stored_as)[:, None]
        return {"weight": weight, **(self.beside or self.plain())}

    def plain(self) -> dict[str, Tensor]:
        """What is saved beside codes that were cut or joined."""
        assert self.planes.table is not None, "codes of four bits have a map"
        kind = self.format.lower()
        said = {"quant_type": kind, "blocksize": self.planes.group, "shape": list(self.shape)}
        text = json.dumps(said | {"dtype": str(self.dtype).removeprefix("torch.")})
        return {
            "weight.absmax": self.planes.scale.flatten(),
            "weight.quant_map": self.planes.table,
            f"{STATE}{kind}": torch.tensor(list(text.encode()), dtype=torch.uint8),
        }


def held_of(stored: Stored) -> Held:
    """What a file holds, where all of it agrees."""
    (name,) = (name for name in stored.tensors if name.startswith(STATE))
    said = state(stored, name)
    block, count = size(stored, name, said, "blocksize"), prod(stored.shape)
    if said.get("quant_type") != name.removeprefix(STATE) or said.get("shape") != [*stored.shape]:
        raise stored.fault(
            f"says {said.get('quant_type')!r:.20} of {said.get('shape')!r:.80}, where its name and "
            f"the model's config have {list(stored.shape)}; {AGAIN}",
            name,
        )
    packed = stored.tensors["weight"].contiguous().view(torch.uint8).flatten().to(stored.device)
    quant_map = floats(stored, "weight.quant_map", 16)
    if len(packed) != ceil(count / 2):
        raise stored.fault(
            f"has {len(packed)} bytes, where {count} weights of four bits are {ceil(count / 2)}; "
            f"{AGAIN}",
            "weight",
        )
    blocks = ceil(count / block)
    nested = "weight.nested_absmax" in stored.tensors
    absmax = nested_absmax(stored, name, said, blocks) if nested else None
    if absmax is None:
        absmax = floats(stored, "weight.absmax", blocks)
    return Held(name.removeprefix(STATE), packed, quant_map, absmax, block)


def nested_absmax(stored: Stored, name: str, said: Mapping[str, Any], blocks: int) -> Tensor:
    """The scales of blocks, which are in few bits themselves."""
    absmax = stored.tensors["weight.absmax"].to(stored.device)
    if absmax.dtype != torch.uint8 or tuple(absmax.shape) != (blocks,):
        raise stored.fault(
            f"has shape {list(absmax.shape)} of {absmax.dtype}, where {blocks} blocks have a byte "
            f"each; {AGAIN}",
            "weight.absmax",
        )
    offset = said.get("nested_offset")
    if not isinstance(offset, int | float):
        raise stored.fault(f"says nested_offset={offset!r:.80}, which is no number; {AGAIN}", name)
    block = size(stored, name, said, "nested_blocksize")
    values = floats(stored, "weight.nested_quant_map", 256)
    scales = floats(stored, "weight.nested_absmax", ceil(blocks / block))
    return naive.unnest(absmax, values, scales, block, float(offset))


def floats(stored: Stored, name: str, count: int) -> Tensor:
    """A tensor of so many numbers, as float32."""
    tensor = stored.tensors[name].to(stored.device)
    if tuple(tensor.shape) != (count,) or not tensor.is_floating_point():
        raise stored.fault(
            f"has shape {list(tensor.shape)} of {tensor.dtype}, where {count} floats belong; "
            f"{AGAIN}",
            name,
        )
    if not bool(tensor.isfinite().all()):
        raise stored.fault(f"holds what is no number; {AGAIN}", name)
    return tensor.float()


def state(stored: Stored, name: str) -> Mapping[str, Any]:
    """What the state says, JSON in a tensor of bytes."""
    raw = stored.tensors[name]
    try:
        said = json.loads(bytes(raw.tolist())) if raw.dtype == torch.uint8 else None
    except (ValueError, RecursionError, TypeError):
        said = None
    if not isinstance(said, Mapping):
        raise stored.fault(f"is no JSON object; {AGAIN}", name)
    return said


def size(stored: Stored, name: str, said: Mapping[str, Any], field: str) -> int:
    number = said.get(field)
    if type(number) is not int or number < 1:
        raise stored.fault(f"says {field}={number!r:.80}, which is no size; {AGAIN}", name)
    return number
