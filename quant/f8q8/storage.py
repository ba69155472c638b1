"""F8Q8: the storage of F8Q8 weights."""

from __future__ import annotations

from functools import partial
from math import ceil, prod
from typing import Self

import torch
from torch import Tensor

from ostro import Storage, Stored
from ostro.nn import Dequantized
from ostro.quant.f8q8 import naive
from ostro.quant.f8q8.naive import BLOCK, NBYTES
from ostro.quant.planes.storage import Packed, Planes, pack_codes, unpack_codes

UQFF_FORMAT = 5
"""The id of this format in UQFF files."""

OFFSET = 128
"""Added to int8 to get codes; codes ^ OFFSET has the same bits."""

AGAIN = "the file is damaged; download it again"


class F8Q8(Packed):
    """A weight [n, k], or [experts, n, k], in groups of 32 with float32 scales d / 416."""

    @classmethod
    def read(cls, stored: Stored) -> Storage:
        """Read the flat "weight" of a UQFF file and its metadata."""
        shape = check_metadata(stored)
        blocks = stored.tensors["weight"].to(stored.device).view(-1, NBYTES)
        if not bool(naive.split(blocks)[1].isfinite().all()):
            raise stored.fault(f"has scales that are NaN or Inf; {AGAIN}", "weight")
        if shape[-1] % BLOCK:
            return Dequantized(
                stored,
                "F8Q8",
                shape,
                {"blocks": blocks},
                partial(naive.dequantize_rows, shape=shape),
                f"{shape[-1]} columns are not a multiple of {BLOCK}",
            )
        q, scale = naive.split(blocks.view(*shape[:-1], -1, NBYTES))
        return cls.from_integers(q, scale, stored.dtype)

    @classmethod
    def quantize(
        cls, weight: Tensor, format: str, dtype: torch.dtype, importance: Tensor | None = None
    ) -> Self:
        """Quantize a float weight [..., n, k] to "f8q8"; k must be a multiple of 32."""
        return cls.from_integers(*naive.quantize(weight.unflatten(-1, (-1, BLOCK))), dtype)

    @classmethod
    def from_integers(cls, q: Tensor, scale: Tensor, dtype: torch.dtype) -> Self:
        """q int8 [..., k / 32, 32], scale float32 [..., k / 32]."""
        codes = (q.flatten(-2).view(torch.uint8)) ^ OFFSET
        return cls("F8Q8", Planes(codes=pack_codes(codes, 8), scale=scale, zero=OFFSET), dtype)

    def save(self) -> dict[str, Tensor]:
        codes = unpack_codes(self.planes.codes) ^ OFFSET
        q = codes.view(torch.int8).unflatten(-1, (-1, BLOCK))
        return tensors(naive.join(q, self.planes.scale), self.shape)


def tensors(blocks: Tensor, shape: tuple[int, ...]) -> dict[str, Tensor]:
    """The tensors of a UQFF file for blocks [..., 33]."""
    flat = blocks.reshape(-1)
    return {
        "weight": flat,
        "weight.format": torch.tensor(UQFF_FORMAT, dtype=torch.uint8),
        "weight.num_blocks": torch.tensor(len(flat) // NBYTES).to(torch.uint32),
        "weight.shape": torch.tensor(shape).to(torch.uint32),
    }


def check_metadata(stored: Stored) -> tuple[int, ...]:
    """The shape of the weight. Raises CheckpointError if the metadata does not match."""
    format, blocks = (stored.number(f"weight.{name}") for name in ("format", "num_blocks"))
    shape = stored.tensors["weight.shape"].flatten().tolist()
    nbytes, expected = stored.tensors["weight"].numel(), ceil(prod(stored.shape) / BLOCK)
    if format != UQFF_FORMAT:
        raise stored.fault(
            f"has the tensors of F8Q8, but its format is {format}; {AGAIN}", "weight"
        )
    if shape != [*stored.shape]:
        raise stored.fault(
            f"is {shape}, but the model's config expects {list(stored.shape)}; the file is of "
            "another model, or damaged",
            "weight.shape",
        )
    if blocks != expected or nbytes != expected * NBYTES:
        raise stored.fault(
            f"has {nbytes} bytes and num_blocks={blocks}, expected {expected} blocks of {NBYTES} "
            f"bytes for {shape} weights; {AGAIN}",
            "weight",
        )
    return stored.shape
