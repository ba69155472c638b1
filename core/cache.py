"""Cache kinds: what the layers of a model remember of a sequence, and what the engine may ask.

A layer states a `CacheSpec`. The engine groups equal specs, gives every group a pool of blocks of
one size, and speaks to the group only through its `CacheKind`. Scheduler, prefix tree, n > 1,
speculation, preemption and the memory planner need no other question.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy
import torch
from torch import Tensor

from ostro.core.ops.attention import AttentionMetadata
from ostro.core.ops.state_layout import StateLayout

if TYPE_CHECKING:
    from ostro.core.ops.kv_write.scaled import Scaled


@dataclass(frozen=True, kw_only=True)
class CacheSpec:
    """What one layer remembers: `kind` is a cache kind's name, the rest its shape.

    heads, key_dim and value_dim describe paged kinds (elements per token = heads * (key_dim +
    value_dim)); window > 0 says that only the last `window` tokens are ever read; state lists the
    shapes that a recurrent kind holds of a sequence, whatever its length, in float32; length > 0
    is the most rows that a kind holds of what an encoder made of one medium.
    """

    kind: str = "paged"
    heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    window: int = 0
    state: tuple[tuple[int, ...], ...] = ()
    length: int = 0


class PagedView(Protocol):
    """The cache of one attention layer in a step.

    k [blocks, heads, block, key_dim], v [blocks, heads, block, value_dim], both `Scaled` where the
    elements are quantized to one byte; `batch` maps the step's rows to blocks and slots.
    """

    k: Tensor | Scaled
    v: Tensor | Scaled
    batch: AttentionMetadata


class RecurrentView(Protocol):
    """The cache of one recurrent layer in a step.

    `states` are tensors [blocks, *shape] float32, one per shape of the layer's spec; `layout` says
    which block each sequence reads its state from and which one it writes.
    """

    @property
    def states(self) -> tuple[Tensor, ...]: ...

    @property
    def layout(self) -> StateLayout: ...


class CacheKind(ABC):
    """The memory of one group of `layers` layers with equal specs, in blocks of `block` tokens."""

    spare = 0
    """Blocks per sequence that are worth having beyond those that one must have."""

    def __init__(
        self,
        spec: CacheSpec,
        layers: int,
        *,
        block: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.spec = spec
        self.layers = layers
        self.block = block
        self.dtype = dtype
        self.device = device

    @classmethod
    def narrows(cls, spec: CacheSpec, dtype: torch.dtype) -> bool:
        """Whether it can hold a spec in a type of one byte (int8, float8_e4m3fn)."""
        return False

    @abstractmethod
    def bytes(self, blocks: int) -> int:
        """Bytes that so many blocks of all layers of the group take."""

    @abstractmethod
    def allocate(self, blocks: int) -> None:
        """Take the memory of so many blocks; called once, before the first view."""

    def zeros(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Memory for `allocate`."""
        return zeros(*shape, dtype=dtype, device=self.device)

    @abstractmethod
    def view(self, layer: int, batch: AttentionMetadata) -> Any:
        """What the `layer`-th layer of the group finds in `step.caches` for this batch."""

    @property
    def aligned(self) -> bool:
        """Whether a step must not run past the end of a block, but end there or inside it.

        So it is where a block is what a sequence was at its end: a state, not its tokens' pages.
        """
        return False

    @property
    def encoded(self) -> bool:
        """Whether it holds what an encoder made of a medium, and not the sequence's own tokens.

        Its blocks are written once per medium and shared by all that see the same.
        """
        return False

    def first(self, length: int) -> int:
        """The first block index that a sequence of `length` tokens still reads."""
        if not self.spec.window:
            return 0
        return max(0, length + 1 - self.spec.window) // self.block

    def keeps(self, index: int, length: int) -> bool:
        """Whether a step that ends at `length` tokens needs the block of this index."""
        return True

    def blocks_of(self, context: int, rows: int) -> int:
        """The blocks that a sequence of `context` tokens must have, steps having `rows` rows."""
        whole = -(-context // self.block) + 1
        if not self.spec.window:
            return whole
        return min(whole, -(-self.spec.window // self.block) + -(-rows // self.block) + 2)

    def truncate(self, length: int) -> int:
        """How many blocks a sequence keeps when it is cut back to `length` tokens."""
        return -(-length // self.block)

    def hit(self, known: Sequence[bool]) -> int:
        """The longest prefix, in blocks, that can be resumed when these blocks are cached."""
        if not self.spec.window:
            return next((i for i, have in enumerate(known) if not have), len(known))
        for end in range(len(known), 0, -1):
            if all(known[self.first(end * self.block) : end]):
                return end
        return 0


def zeros(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros. On CPU they are the system's, which takes memory page by page when it is used."""
    if device.type != "cpu" or 0 in shape:
        return torch.zeros(shape, dtype=dtype, device=device)
    blank = numpy.zeros(prod(shape) * dtype.itemsize, dtype=numpy.uint8)
    return torch.from_numpy(blank).view(dtype).view(shape).to(device)
