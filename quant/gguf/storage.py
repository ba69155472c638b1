"""Blocks: the storage of weights in ggml block formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from ostro import Storage, Stored
from ostro.checkpoints import GGML_BY_NAME
from ostro.quant.gguf.planes import FIELDS, pack, unpack
from ostro.quant.gguf.quantize import quantize
from ostro.quant.gguf.schemes import FORMATS
from ostro.quant.planes.storage import Packed, Planes


class Blocks(Packed):
    """A weight [n, k], or [experts, n, k], whose rows were blocks of `format`.

    If its planes do not determine the blocks, `source` returns the bytes of the file, uint8
    [..., n, bytes per row]. It is a function because the bytes are not part of the weight: they
    stay in the mapped file and do not move to the device with the planes.
    """

    def __init__(
        self,
        format: str,
        planes: Planes,
        dtype: torch.dtype,
        source: Callable[[], Tensor] | None = None,
    ) -> None:
        super().__init__(format, planes, dtype)
        self.source = source

    @classmethod
    def read(cls, stored: Stored) -> Self:
        """Read "weight" of a GGUF file."""
        data, format = stored.tensors["weight"], stored.infos["weight"].format
        kind = GGML_BY_NAME[format]
        *rows, nbytes = data.shape
        if data.dtype != torch.uint8 or nbytes % kind.nbytes:
            raise stored.fault(
                f"has rows of {nbytes} {data.dtype}, expected uint8 in {format} blocks of "
                f"{kind.nbytes}; the file is damaged; download or convert it again"
            )
        shape = (*rows, nbytes // kind.nbytes * kind.block)
        if shape != tuple(stored.shape):
            raise stored.fault(
                f"has {format} blocks for weights {list(shape)}, expected {list(stored.shape)}; "
                "the file belongs to another model or is damaged"
            )
        return cls.from_rows(format, data, stored.device, stored.dtype)

    @classmethod
    def from_rows(cls, format: str, data: Tensor, device: torch.device, dtype: torch.dtype) -> Self:
        """A storage of rows of blocks, uint8 [..., n, bytes per row]."""
        source = None if format in FIELDS else lambda: data
        return cls(format, pack(format, data.to(device)), dtype, source)

    @classmethod
    def quantize(
        cls, weight: Tensor, format: str, dtype: torch.dtype, importance: Tensor | None = None
    ) -> Self:
        """Quantize a float weight [..., n, k] to "q4k", "q8_0", ...; importance [k] of columns."""
        known = next(name for name in FORMATS if canonical(name) == canonical(format))
        rows = quantize(weight.reshape(-1, weight.shape[-1]), known, importance)
        return cls.from_rows(known, rows.view(*weight.shape[:-1], -1), weight.device, dtype)

    def raw(self) -> Tensor:
        """The bytes of the file, uint8 [..., n, bytes per row]."""
        return unpack(self.format, self.planes) if self.source is None else self.source()

    def save(self) -> dict[str, Tensor]:
        return {"weight": self.raw()}

    def permute_rows(self, permute: Callable[[Tensor], Tensor]) -> Self:
        storage, source = super().permute_rows(permute), self.source
        storage.source = source and (lambda: permute(source()))
        return storage

    @classmethod
    def fuse(cls, storages: Sequence[Any]) -> Storage | None:
        return with_sources(super().fuse(storages), storages, partial(torch.cat, dim=-2))

    @classmethod
    def stack(cls, storages: Sequence[Any]) -> Storage | None:
        return with_sources(super().stack(storages), storages, torch.stack)


def canonical(name: str) -> str:
    """A format's name in the spelling of `--quant`: q4k for Q4_K."""
    return name.lower().replace("_", "")


def with_sources(
    joined: Storage | None, storages: Sequence[Any], join: Callable[[list[Tensor]], Tensor]
) -> Storage | None:
    """Set the source of a joined storage to the joined bytes of all storages."""
    if isinstance(joined, Blocks) and joined.source is not None:
        sources = [storage.source for storage in storages]
        joined.source = lambda: join([source() for source in sources])
    return joined
