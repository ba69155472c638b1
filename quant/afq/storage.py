"""Afq: the storage of weights in MLX's affine format."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from ostro import Stored
from ostro.quant.afq import GROUP, naive
from ostro.quant.planes.storage import Packed, Planes, pack_codes, unpack_codes

UQFF_FORMAT = 4
"""The id of this format in UQFF files."""

AGAIN = "the file does not match the model's config; download or convert it again"


class Afq(Packed):
    """A weight [n, k], or [experts, n, k]; `naive` documents the layout of its tensors.

    `uqff` is True if it was read from a UQFF file; `save` then returns the tensors of UQFF.
    """

    uqff = False

    @classmethod
    def read(cls, stored: Stored) -> Self:
        """Read "weight", "scales" and "biases", in UQFF "weight.scales" and "weight.biases".

        The shapes determine the bits and the group size; the metadata of a UQFF file must match.
        """
        prefix = "weight." if "weight.format" in stored.tensors else ""
        bits, group = sizes(stored, prefix)
        if prefix and (metadata := read_metadata(stored)) != [UQFF_FORMAT, bits, group]:
            raise stored.fault(
                f"has the shape of format {UQFF_FORMAT}, {bits} bits and groups of {group}, but "
                f"the metadata of the file is {metadata}; download it again",
                "weight",
            )
        names = ("weight", f"{prefix}scales", f"{prefix}biases")
        words, scales, biases = (stored.tensors[name].to(stored.device) for name in names)
        storage = cls.from_codes(naive.unpack(words, bits), scales, biases, bits, stored.dtype)
        storage.uqff = bool(prefix)
        return storage

    @classmethod
    def quantize(
        cls, weight: Tensor, format: str, dtype: torch.dtype, importance: Tensor | None = None
    ) -> Self:
        """Quantize a float weight [..., n, k] to "afq2" ... "afq8"; k must be a multiple of 64."""
        bits = int(format.removeprefix("afq"))
        return cls.from_codes(*naive.quantize(weight, bits, GROUP), bits, dtype)

    @classmethod
    def from_codes(
        cls, codes: Tensor, scales: Tensor, biases: Tensor, bits: int, dtype: torch.dtype
    ) -> Self:
        """codes uint8 [..., k], scales and biases floats [..., k / group]."""
        planes = Planes(codes=pack_codes(codes, bits), scale=scales, offset=biases)
        return cls(f"AFQ{bits}", planes, dtype)

    def save(self) -> dict[str, Tensor]:
        planes = self.planes
        assert planes.offset is not None, "an affine format has biases"
        words = naive.pack(unpack_codes(planes.codes), planes.bits)
        if not self.uqff:
            return {"weight": words, "scales": planes.scale, "biases": planes.offset}
        return {
            "weight": words,
            "weight.format": torch.tensor(UQFF_FORMAT, dtype=torch.uint8),
            "weight.scales": planes.scale,
            "weight.biases": planes.offset,
            "weight.bits": torch.tensor(planes.bits, dtype=torch.uint8),
            "weight.group_size": torch.tensor(planes.group, dtype=torch.uint8),
        }


def sizes(stored: Stored, prefix: str) -> tuple[int, int]:
    """Bits of a code and columns of a group, from the shapes."""
    words, scales, biases = (
        stored.tensors[name].shape for name in ("weight", f"{prefix}scales", f"{prefix}biases")
    )
    k = stored.shape[-1]
    if len(words) != len(stored.shape) or scales != biases or scales[:-1] != words[:-1]:
        raise stored.fault(
            f"has shape {list(words)}, which does not match scales {list(scales)} and biases "
            f"{list(biases)}; {AGAIN}",
            "weight",
        )
    bits, remainder = divmod(words[-1] * 32, k)
    if remainder or bits not in naive.BITS:
        raise stored.fault(
            f"has {words[-1]} words per row, {words[-1] * 32 / k:g} bits for each of {k} weights, "
            f"expected one of {', '.join(map(str, naive.BITS))}; {AGAIN}",
            "weight",
        )
    group, remainder = divmod(k, scales[-1] or k + 1)
    if remainder or group not in naive.GROUPS:
        raise stored.fault(
            f"has {scales[-1]} scales for {k} weights, expected groups of "
            f"{', '.join(map(str, naive.GROUPS))}; {AGAIN}",
            f"{prefix}scales",
        )
    return bits, group


def read_metadata(stored: Stored) -> list[float]:
    """Format, bits and group size in the metadata of a UQFF file."""
    names = ("weight.format", "weight.bits", "weight.group_size")
    return [stored.number(name) for name in names]
