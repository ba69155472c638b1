"""Names: the pairs by which a checkpoint's names and a model's names are one.

Module paths are the hub's checkpoint names. Differences are declared once per architecture, as
pairs of dotted patterns with their transform, one list per name space; each pair reads both ways.
Only whole components are compared, never substrings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ostro.core.errors import CheckpointError
from ostro.core.nn.storage import Storage


class Transform(Protocol):
    """An invertible change of a tensor between its checkpoint and the model.

    `packed` says that it only moves whole rows, so it can be done on quantized bytes as well.
    """

    @property
    def packed(self) -> bool: ...

    def read(self, tensor: Tensor) -> Tensor: ...
    def write(self, tensor: Tensor) -> Tensor: ...


@runtime_checkable
class StorageTransform(Transform, Protocol):
    """A transform that floats undergo when they are read, and quantized weights as a storage.

    `stored` is the transform of the tensors of the storage that `wrap` takes.
    """

    @property
    def stored(self) -> Transform | None: ...

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the weight in the checkpoint, for the model's [n, k]."""

    def wrap(self, storage: Storage) -> Storage:
        """The model's weight [n, k], for a storage of `stored_shape`."""


@dataclass(frozen=True)
class Add:
    """The checkpoint holds w - amount (gemma's norms), the model multiplies by w; in float32."""

    amount: float
    packed: bool = field(default=False, init=False)

    def read(self, tensor: Tensor) -> Tensor:
        return tensor.float() + self.amount

    def write(self, tensor: Tensor) -> Tensor:
        return tensor.float() - self.amount


@dataclass(frozen=True)
class Unpermute:
    """Undo the row order in which llama.cpp's converter writes the q and k of the llama family.

    The converter interleaves the two halves of each head so that pairs of the rotation lie side by
    side (`LlamaModel.permute` in convert_hf_to_gguf.py); rows move whole, so packed bytes may too.
    """

    heads: int
    packed: bool = field(default=True, init=False)

    def whole(self, rows: int) -> int:
        """Rows of the checkpoint's tensor for `rows` of the model's."""
        return rows

    def read(self, tensor: Tensor) -> Tensor:
        if tensor.dim() == 0 or tensor.shape[0] % (2 * self.heads):
            raise CheckpointError(
                f"a q or k of shape {tuple(tensor.shape)} does not hold {self.heads} heads of pairs"
            )
        half = tensor.shape[0] // self.heads // 2
        rows = tensor.reshape(self.heads, half, 2, *tensor.shape[1:])
        return rows.transpose(1, 2).reshape(tensor.shape)

    def write(self, tensor: Tensor) -> Tensor:
        half = tensor.shape[0] // self.heads // 2
        rows = tensor.reshape(self.heads, 2, half, *tensor.shape[1:])
        return rows.transpose(1, 2).reshape(tensor.shape)


@dataclass(frozen=True)
class HeadRows:
    """Rows start..stop of the `size` rows of each head of a tensor [heads * size, ...].

    Pairs with the same `theirs` say where each part of a tensor goes. A part is written among
    zeros; the whole is the sum of what its parts write.
    """

    heads: int
    size: int
    start: int
    stop: int
    packed: bool = field(default=True, init=False)

    def whole(self, rows: int) -> int:
        """Rows of the checkpoint's tensor for `rows` of the model's."""
        return rows // (self.stop - self.start) * self.size

    def read(self, tensor: Tensor) -> Tensor:
        if tensor.dim() == 0 or tensor.shape[0] != self.heads * self.size:
            raise CheckpointError(
                f"a weight of shape {tuple(tensor.shape)} does not hold {self.heads} heads of "
                f"{self.size} rows"
            )
        rows = tensor.reshape(self.heads, self.size, *tensor.shape[1:])[:, self.start : self.stop]
        return rows.reshape(-1, *tensor.shape[1:])

    def write(self, tensor: Tensor) -> Tensor:
        whole = tensor.new_zeros(self.heads, self.size, *tensor.shape[1:])
        whole[:, self.start : self.stop] = tensor.reshape(self.heads, -1, *tensor.shape[1:])
        return whole.reshape(-1, *tensor.shape[1:])


@dataclass(frozen=True)
class Pair:
    """`theirs` <-> `ours`: dotted patterns, `{i}`-like components match any one component.

    Both may name a tensor or a prefix of one; the rest of the name is kept.
    """

    theirs: str
    ours: str
    transform: Transform | None = None

    def match(self, name: str, *, write: bool = False) -> str | None:
        """The other side's name, or None where the pattern does not match."""
        source, target = (self.ours, self.theirs) if write else (self.theirs, self.ours)
        found = compiled(source).fullmatch(name)
        if found is None:
            return None
        groups = found.groupdict()
        rest = groups.pop("_rest") or ""
        return target.format(**groups) + rest


def compiled(pattern: str) -> re.Pattern[str]:
    """A dotted pattern as a regular expression; the tail that it does not name is `_rest`."""
    if pattern not in PATTERNS:
        escaped = re.escape(pattern).replace(r"\{", "{").replace(r"\}", "}")
        body = re.sub(r"\{(\w+)\}", r"(?P<\1>[^.]+)", escaped)
        PATTERNS[pattern] = re.compile(body + r"(?P<_rest>(?:\.[^.].*)?)")
    return PATTERNS[pattern]


PATTERNS: dict[str, re.Pattern[str]] = {}


@dataclass(frozen=True)
class Named:
    """One tensor under the model's name, with the transform that brings it there."""

    name: str
    theirs: str
    transform: Transform | None


@dataclass(frozen=True, kw_only=True)
class Names:
    """The name spaces of one architecture: pair lists for hub checkpoints and for GGUF files.

    `tree` are the names of transformers' module tree, which adapters use, where they are not the
    hub's; its pairs come before the hub's. `ignore` are patterns of tensors that may be left over
    (tables that follow from the config). A name without a pair is its own; in GGUF it is left over.
    """

    hub: Sequence[Pair] = ()
    gguf: Sequence[Pair] = ()
    tree: Sequence[Pair] = ()
    ignore: Sequence[str] = ("{any}.rotary_emb.inv_freq", "rope_freqs.weight")

    def read(self, names: Iterable[str], space: str = "hub") -> tuple[list[Named], list[str]]:
        """Every checkpoint name as the model's; the second list is what nobody claims."""
        named, left = [], []
        for name in names:
            if found := self.find(name, space):
                named += found
            elif not self.ignored(name):
                left.append(name)
        return named, left

    def find(self, name: str, space: str) -> list[Named]:
        """What one of theirs becomes: the first pair that matches, and any more of its pattern."""
        found: list[Named] = []
        pattern = ""
        for pair in self.spaces[space]:
            ours = pair.match(name) if pattern in ("", pair.theirs) else None
            if ours is not None:
                pattern = pair.theirs
                found.append(Named(ours, name, pair.transform))
        if found or space == "gguf" or self.ignored(name):
            return found
        return [Named(name, name, None)]

    def write(self, name: str, space: str = "hub") -> Named:
        """The checkpoint's name for one of ours, and the transform whose `write` goes there."""
        for pair in self.spaces[space]:
            theirs = pair.match(name, write=True)
            if theirs is not None:
                return Named(name, theirs, pair.transform)
        return Named(name, name, None)

    def ignored(self, name: str) -> bool:
        return any(
            re.fullmatch(re.sub(r"\\\{\w+\\\}", ".+", re.escape(p)), name) for p in self.ignore
        )

    @cached_property
    def spaces(self) -> Mapping[str, Sequence[Pair]]:
        return {"hub": self.hub, "gguf": self.gguf, "tree": (*self.tree, *self.hub)}


def apply(transform: Transform | None, tensor: Tensor) -> Tensor:
    """A checkpoint's tensor as the model wants it, contiguous."""
    return tensor if transform is None else transform.read(tensor).contiguous()


FLOATS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
"""Names of plain float formats, as both safetensors and GGUF write them."""
