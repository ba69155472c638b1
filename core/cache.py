"""Cache kinds: the interface between the engine and the caches of layers.

A layer declares a `CacheSpec`. The engine groups layers with equal specs, gives each group a pool
of blocks of one size, and accesses the group through its `CacheKind` only. Scheduler, prefix cache,
n > 1, speculation, preemption and the memory planner need nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from ostro.core.ops.attention import AttentionMetadata
from ostro.core.ops.state_layout import StateLayout

if TYPE_CHECKING:
    from ostro.core.ops.kv_write.scaled import Scaled


@dataclass(frozen=True, kw_only=True)
class CacheSpec:
    """The cache of one layer: the name of its cache kind, and its shape.

    heads, key_dim and value_dim are for paged kinds (elements per token = heads * (key_dim +
    value_dim)). With window > 0 only the last `window` tokens are ever read. state lists the shapes
    of a recurrent kind's float32 states, which do not depend on a sequence's length. length > 0 is
    the most encoder rows of one medium. spans: the rows of an atomic span (`Item.atomic`) attend to
    each other in both directions; if False, this layer is causal.
    """

    kind: str = "paged"
    heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    window: int = 0
    state: tuple[tuple[int, ...], ...] = ()
    length: int = 0
    spans: bool = True


class PagedView(Protocol):
    """A view on the cache of one attention layer in a step.

    k [blocks, heads, block, key_dim], v [blocks, heads, block, value_dim], both `Scaled` where the
    elements are quantized to one byte; `batch` maps the step's rows to blocks and slots.
    """

    k: Tensor | Scaled
    v: Tensor | Scaled
    batch: AttentionMetadata


class RecurrentView(Protocol):
    """A view on the cache of one recurrent layer in a step.

    `states` are tensors [blocks, *shape] float32, one per shape of the layer's spec. `layout` has
    the block from which each sequence reads its state, and the blocks to which its rows write it.
    """

    @property
    def states(self) -> tuple[Tensor, ...]: ...

    @property
    def layout(self) -> StateLayout: ...


class CacheKind(ABC):
    """The memory of one group of `layers` layers with equal specs, in blocks of `block` tokens."""

    spare = 0
    """Useful blocks per sequence in addition to the required ones, e.g. for cached prefixes."""

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
    def supports_quantized(cls, spec: CacheSpec, dtype: torch.dtype) -> bool:
        """Whether the kind can store a spec in a dtype of one byte (int8, float8_e4m3fn)."""
        return False

    @abstractmethod
    def bytes(self, blocks: int) -> int:
        """Bytes of `blocks` blocks of all layers of the group."""

    @abstractmethod
    def allocate(self, blocks: int) -> None:
        """Allocate the memory of `blocks` blocks; called once, before the first view."""

    def zeros(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Zeros on the kind's device, for `allocate`."""
        return zeros(*shape, dtype=dtype, device=self.device)

    @abstractmethod
    def view(self, layer: int, batch: AttentionMetadata) -> Any:
        """The entry of the group's `layer`-th layer in `step.caches` for this batch."""

    @property
    def aligned(self) -> bool:
        """Whether a step must end at the end of a block, or in the block where it starts.

        True if a block is the state of a sequence after its last token, not the pages of its
        tokens: a step that runs past the end leaves no state to cache. The state after a proposed
        token (speculative decoding) must be written to the block of its slot.
        """
        return False

    @property
    def encoded(self) -> bool:
        """Whether the kind stores encoder states of media instead of a sequence's own tokens.

        Its blocks are written once per medium and shared by all sequences with the medium.
        """
        return False

    def first(self, length: int) -> int:
        """The first block index that a sequence of `length` tokens still reads."""
        if not self.spec.window:
            return 0
        # + 1: the next token attends to the last `window` tokens, itself included.
        return max(0, length + 1 - self.spec.window) // self.block

    def needs_block(self, index: int, length: int) -> bool:
        """Whether a step that ends at `length` tokens needs the block of this index."""
        return True

    def blocks_of(self, context: int, rows: int) -> int:
        """The blocks that a sequence of `context` tokens needs, in steps of up to `rows` rows."""
        blocks = -(-context // self.block) + 1
        if not self.spec.window:
            return blocks
        # The window and the rows of a step may each begin and end in the middle of a block.
        return min(blocks, -(-self.spec.window // self.block) + -(-rows // self.block) + 2)

    def hit(self, known: Sequence[bool]) -> int:
        """The longest prefix, in blocks, that can be resumed if the `known` blocks are cached."""
        if not self.spec.window:
            return next((i for i, cached in enumerate(known) if not cached), len(known))
        # With a window the last blocks suffice, even if earlier ones are evicted.
        for end in range(len(known), 0, -1):
            if all(known[self.first(end * self.block) : end]):
                return end
        return 0


def zeros(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros of a shape on a device."""
    if device.type != "cpu" or 0 in shape:
        return torch.zeros(shape, dtype=dtype, device=device)
    # The system provides each page at its first use, so a large cache costs memory only as far as
    # it is used. numpy's zeros would ask for huge pages: 2 MB per layer for the first token.
    pages = mmap(-1, prod(shape) * dtype.itemsize, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype).view(shape).to(device)  # "cpu:1" in simulations
