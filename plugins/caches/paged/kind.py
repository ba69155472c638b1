"""The paged cache: keys and values in blocks, [blocks, heads, block, dim], two tensors per layer.

In int8 or fp8 (e4m3) an element is one byte. Each token and head then has two scales, one for the
key and one for the value: float32 [blocks, heads, block].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ostro import CacheKind, CacheSpec
from ostro.ops import SCALED_LIMITS, AttentionMetadata, Scaled

SCALE = torch.float32


@dataclass(slots=True)
class Pages:
    """The cache of one attention layer in a step.

    k [blocks, heads, block, key_dim] and v [blocks, heads, block, value_dim] are `Scaled` if an
    element is one byte; `batch` locates the blocks of each row.
    """

    k: Tensor | Scaled
    v: Tensor | Scaled
    batch: AttentionMetadata


class Paged(CacheKind):
    """Keys and values of every token, in the blocks of a sequence's block table."""

    @classmethod
    def supports_quantized(cls, spec: CacheSpec, dtype: torch.dtype) -> bool:
        """Whether the cache supports a one-byte dtype: keys and values of heads do, latents
        do not.
        """
        return dtype in SCALED_LIMITS and spec.value_dim > 0

    def bytes(self, blocks: int) -> int:
        spec = self.spec
        scales = 2 * SCALE.itemsize if self.dtype in SCALED_LIMITS else 0
        per_head = (spec.key_dim + spec.value_dim) * self.dtype.itemsize + scales
        return blocks * self.block * spec.heads * per_head * self.layers

    def allocate(self, blocks: int) -> None:
        spec = self.spec
        shape = (self.layers, blocks, spec.heads, self.block)

        def zeros(*dims: int, dtype: torch.dtype = self.dtype) -> Tensor:
            return self.zeros(*shape, *dims, dtype=dtype)

        self.tensors = [zeros(spec.key_dim), zeros(spec.value_dim)]
        if self.dtype in SCALED_LIMITS:
            self.tensors += [zeros(dtype=SCALE), zeros(dtype=SCALE)]

    def view(self, layer: int, batch: AttentionMetadata) -> Pages:
        k, v, *scales = (tensor[layer] for tensor in self.tensors)
        if scales:
            return Pages(Scaled(k, scales[0]), Scaled(v, scales[1]), batch)
        return Pages(k, v, batch)


class Cross(Paged):
    """Keys and values of encoder states, written once per medium, in floats."""

    @classmethod
    def supports_quantized(cls, spec: CacheSpec, dtype: torch.dtype) -> bool:
        return False

    @property
    def encoded(self) -> bool:
        return True

    def blocks_of(self, context: int, rows: int) -> int:
        return -(-self.spec.length // self.block)
