"""Bits4: the storage of NF4 and FP4 weights of bitsandbytes."""

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
AGAIN = "the file is damaged; download or convert it again"


@dataclass(frozen=True)
class FourBitTensors:
    """The tensors of a weight: packed codes, a table of 16 values, and one scale per block."""

    kind: str
    packed: Tensor
    quant_map: Tensor
    absmax: Tensor
    block: int


class Bits4(Packed):
    """A weight [n, k], or [experts, n, k]; its quant_map is the table of its planes.

    The group size is the greatest common divisor of the row length and the block size.
    `other_tensors` are the tensors besides the codes; `save` returns them unchanged. For fused or
    stacked weights, `save` returns a float absmax per group instead.
    """

    other_tensors: Mapping[str, Tensor]
    stored_as: torch.dtype = torch.uint8

    @classmethod
    def read(cls, stored: Stored) -> Storage:
        """Read "weight", "weight.absmax", "weight.quant_map" and the JSON quant_state."""
        tensors = read_tensors(stored)
        n, k = stored.shape
        other_tensors = {name: t for name, t in stored.tensors.items() if name != "weight"}
        if k % CELL:
            return Dequantized(
                stored,
                tensors.kind.upper(),
                (n, k),
                {
                    "packed": tensors.packed,
                    "quant_map": tensors.quant_map,
                    "absmax": tensors.absmax,
                },
                partial(naive.dequantize_rows, shape=(n, k), block=tensors.block),
                f"{k} columns are not a multiple of {CELL}",
            )
        codes = naive.unpack(tensors.packed, 0, n * k).view(n, k)
        first = torch.arange(0, n * k, gcd(k, tensors.block), device=tensors.absmax.device)
        planes = Planes(
            codes=pack_codes(codes, 4),
            scale=tensors.absmax[first // tensors.block].view(n, -1),
            table=tensors.quant_map,
        )
        storage = cls(tensors.kind.upper(), planes, stored.dtype)
        storage.other_tensors, storage.stored_as = other_tensors, stored.tensors["weight"].dtype
        return storage

    def of(self, planes: Planes) -> Self:
        storage = super().of(planes)
        storage.other_tensors = {}
        return storage

    def save(self) -> dict[str, Tensor]:
        codes = unpack_codes(self.planes.codes).flatten()
        weight = naive.pack(codes).view(self.stored_as)[:, None]
        return {"weight": weight, **(self.other_tensors or self.merged_tensors())}

    def merged_tensors(self) -> dict[str, Tensor]:
        """The tensors that `save` adds to the codes of fused or stacked weights."""
        assert self.planes.table is not None, "four-bit formats have a table"
        kind = self.format.lower()
        state = {"quant_type": kind, "blocksize": self.planes.group, "shape": list(self.shape)}
        text = json.dumps(state | {"dtype": str(self.dtype).removeprefix("torch.")})
        return {
            "weight.absmax": self.planes.scale.flatten(),
            "weight.quant_map": self.planes.table,
            f"{STATE}{kind}": torch.tensor(list(text.encode()), dtype=torch.uint8),
        }


def read_tensors(stored: Stored) -> FourBitTensors:
    """Read and validate the tensors of a weight. Raises CheckpointError if they do not match."""
    (name,) = (name for name in stored.tensors if name.startswith(STATE))
    state = read_state(stored, name)
    block, count = read_size(stored, name, state, "blocksize"), prod(stored.shape)
    kind, shape = state.get("quant_type"), state.get("shape")
    if kind != name.removeprefix(STATE) or shape != [*stored.shape]:
        raise stored.fault(
            f"describes {kind!r:.20} of shape {shape!r:.80}, expected {name.removeprefix(STATE)!r} "
            f"of shape {list(stored.shape)}; {AGAIN}",
            name,
        )
    packed = stored.tensors["weight"].contiguous().view(torch.uint8).flatten().to(stored.device)
    quant_map = floats(stored, "weight.quant_map", 16)
    if len(packed) != ceil(count / 2):
        raise stored.fault(
            f"has {len(packed)} bytes, expected {ceil(count / 2)} for {count} weights; {AGAIN}",
            "weight",
        )
    blocks = ceil(count / block)
    nested = "weight.nested_absmax" in stored.tensors
    absmax = nested_absmax(stored, name, state, blocks) if nested else None
    if absmax is None:
        absmax = floats(stored, "weight.absmax", blocks)
    return FourBitTensors(name.removeprefix(STATE), packed, quant_map, absmax, block)


def nested_absmax(stored: Stored, name: str, state: Mapping[str, Any], blocks: int) -> Tensor:
    """Dequantize nested block scales, float32 [blocks]."""
    absmax = stored.tensors["weight.absmax"].to(stored.device)
    if absmax.dtype != torch.uint8 or tuple(absmax.shape) != (blocks,):
        raise stored.fault(
            f"has shape {list(absmax.shape)} and type {absmax.dtype}, expected uint8 [{blocks}]; "
            f"{AGAIN}",
            "weight.absmax",
        )
    offset = state.get("nested_offset")
    if not isinstance(offset, int | float):
        raise stored.fault(f"has nested_offset={offset!r:.80}, expected a number; {AGAIN}", name)
    block = read_size(stored, name, state, "nested_blocksize")
    values = floats(stored, "weight.nested_quant_map", 256)
    scales = floats(stored, "weight.nested_absmax", ceil(blocks / block))
    return naive.unnest(absmax, values, scales, block, float(offset))


def floats(stored: Stored, name: str, count: int) -> Tensor:
    """A tensor of `count` finite floats, as float32. Raises CheckpointError for other tensors."""
    tensor = stored.tensors[name].to(stored.device)
    if tuple(tensor.shape) != (count,) or not tensor.is_floating_point():
        raise stored.fault(
            f"has shape {list(tensor.shape)} and type {tensor.dtype}, expected {count} floats; "
            f"{AGAIN}",
            name,
        )
    if not bool(tensor.isfinite().all()):
        raise stored.fault(f"contains NaN or Inf; {AGAIN}", name)
    return tensor.float()


def read_state(stored: Stored, name: str) -> Mapping[str, Any]:
    """Parse the quant_state, a JSON object in a uint8 tensor."""
    raw = stored.tensors[name]
    try:
        state = json.loads(bytes(raw.tolist())) if raw.dtype == torch.uint8 else None
    except (ValueError, RecursionError, TypeError):
        state = None
    if not isinstance(state, Mapping):
        raise stored.fault(f"is not a JSON object; {AGAIN}", name)
    return state


def read_size(stored: Stored, name: str, state: Mapping[str, Any], field: str) -> int:
    number = state.get(field)
    if type(number) is not int or number < 1:
        raise stored.fault(
            f"has {field}={number!r:.80}, expected a positive integer; {AGAIN}", name
        )
    return number
