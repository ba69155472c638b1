"""Fp8: a weight of floats of eight bits, in planes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from ostro import Storage, Stored, errors
from ostro.nn import Dequantized
from ostro.ops import Target
from ostro.quant.fp8 import SCALES, UNUSED, UQFF, naive
from ostro.quant.planes.storage import CELL, Packed, Planes, pack_codes, unpack_codes

UQFF_FORMAT = 3
"""What a UQFF file calls this format."""

TYPES = {"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}
AGAIN = "the file is damaged or its config is another's, download or convert it again"


class Fp8(Packed):
    """A weight [n, k], or [experts, n, k]: codes with a table of 256 numbers, scales per group.

    `beside` are the tensors beside the weight as they were read, which go back as they came, but
    not where it was cut or joined. `unused` names the scales among them that nothing asks for.
    """

    beside: Mapping[str, Tensor]
    unused = ""

    @classmethod
    def read(cls, stored: Stored) -> Storage:
        """From "weight" and "weight_scale" or "weight_scale_inv", or a UQFF file's tensors.

        Scales of activations are left unused: x is multiplied in the dtype of the model, which is
        at least as near. Without a "weight_block_size" in the config, blocks divide the weight.
        """
        format = stored.infos["weight"].format
        q = stored.tensors["weight"].to(stored.device)
        scale = spread_of(stored)
        if not naive.finite(q):
            raise stored.fault(f"holds what is no number; {AGAIN}", "weight")
        beside = {name: t for name, t in stored.tensors.items() if name != "weight"}
        if q.shape[-1] % CELL:
            return Dequantized(
                stored,
                format,
                tuple(q.shape),
                {"q": q, "scale": scale},
                lambda rows, q, scale: naive.dequantize(q[rows], scale[rows]),
                f"{q.shape[-1]} columns are no multiple of {CELL}",
            )
        made = cls.of_numbers(format, q, scale, stored.dtype)
        made.beside, made.unused = beside, " and ".join(sorted(UNUSED & beside.keys()))
        return made

    @classmethod
    def quantize(
        cls, weight: Tensor, format: str, dtype: torch.dtype, importance: Tensor | None = None
    ) -> Self:
        """A float weight [..., n, k] as "fp8": one scale per matrix; k must be a multiple of 32."""
        q, scale = naive.quantize(weight)
        made = cls.of_numbers("F8_E4M3", q, scale.expand(*q.shape[:-1], 1), dtype)
        made.beside = {"weight_scale": scale.reshape(())} if weight.dim() == 2 else {}
        return made

    @classmethod
    def of_numbers(cls, format: str, q: Tensor, scale: Tensor, dtype: torch.dtype) -> Self:
        """q of a float8 type [..., k], scale floats [..., k / group]."""
        codes = pack_codes(q.contiguous().view(torch.uint8), 8)
        table = naive.table(q.dtype).to(q.device)
        made = cls(format, Planes(codes=codes, scale=scale.contiguous(), table=table), dtype)
        made.beside = {}
        return made

    def of(self, planes: Planes) -> Self:
        made = super().of(planes)
        made.beside = {}
        return made

    def save(self) -> dict[str, Tensor]:
        weight = unpack_codes(self.planes.codes).view(TYPES[self.format])
        return {"weight": weight, **(self.beside or {"weight_scale": self.planes.scale})}

    def finalize(self, target: Target, *, embedding: bool = False) -> str:
        said = super().finalize(target, embedding=embedding)
        return f"{said}; {self.unused} unused: x stays as it is" if self.unused else said


def spread_of(stored: Stored) -> Tensor:
    """The scale of every group of every row, [n, k / group]."""
    uqff = stored.tensors.keys() == UQFF
    if uqff and (said := stored.number("weight.format")) != UQFF_FORMAT:
        raise stored.fault(
            f"has tensors of FP8 beside it, but the file says format {said}; {AGAIN}", "weight"
        )
    name = "weight.dequant_w_scale" if uqff else next(iter(SCALES & stored.tensors.keys()))
    scale, shape = stored.tensors[name].to(stored.device), stored.tensors["weight"].shape
    if scale.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        scale = scale.float()
    if not bool(scale.isfinite().all()):
        raise stored.fault(f"holds what is no number; {AGAIN}", name)
    size = block_size(stored)
    found = naive.blocks(scale, *shape, size) if len(shape) == 2 else None
    if found is None:
        blocks = f"blocks of {list(size)}" if size else "whole blocks"
        raise stored.fault(
            f"has shape {list(scale.shape)}, which is neither one scale, nor one for each row, nor "
            f"for {blocks} of {list(shape)} weights; {AGAIN}",
            name,
        )
    return found.spread(*shape)


def block_size(stored: Stored) -> tuple[int, int] | None:
    """What the config says of the size of blocks."""
    said: Any = stored.settings.get("weight_block_size")
    if said is None:
        return None
    numbers = isinstance(said, list) and all(type(size) is int and size > 0 for size in said)
    if not numbers or len(said) != 2:
        raise errors.ConfigError(
            f"config.json: quantization_config.weight_block_size={said!r:.80} is no pair of sizes"
        )
    return said[0], said[1]
