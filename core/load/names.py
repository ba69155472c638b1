"""Map tensor names of a checkpoint to names of a model, in both directions, with transforms.

By default, a model's module paths equal the names in hub checkpoints. An architecture declares the
differences as pairs of dotted patterns with an optional transform, one list per name space. A
pattern matches whole components of a name, never substrings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ostro.core.errors import CheckpointError
from ostro.core.nn.storage import Storage


class Transform(Protocol):
    """An invertible change of a tensor between its checkpoint and the model.

    `packed` is True if it only permutes whole rows, so that it applies to quantized bytes as well.
    """

    @property
    def packed(self) -> bool: ...

    def read(self, tensor: Tensor) -> Tensor: ...
    def write(self, tensor: Tensor) -> Tensor: ...


@runtime_checkable
class StorageTransform(Transform, Protocol):
    """A transform that applies to float tensors, or to the whole storage of a quantized weight.

    `stored` is the transform of the tensors of the storage that is passed to `wrap`.
    """

    @property
    def stored(self) -> Transform | None: ...

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the weight in the checkpoint, for the model's [n, k]."""

    def wrap(self, storage: Storage) -> Storage:
        """Wrap a storage of `stored_shape` as the model's weight [n, k]."""


@dataclass(frozen=True)
class Add:
    """Add a constant in float32: the checkpoint stores w - amount (Gemma's norms)."""

    amount: float
    packed: bool = field(default=False, init=False)

    def read(self, tensor: Tensor) -> Tensor:
        return tensor.float() + self.amount

    def write(self, tensor: Tensor) -> Tensor:
        return tensor.float() - self.amount


@dataclass(frozen=True)
class Unpermute:
    """Undo the row permutation of q and k by llama.cpp's converter for the llama family.

    The converter interleaves the two halves of each head, so that the pairs of the rotation are
    adjacent (`LlamaModel.permute` in convert_hf_to_gguf.py). Only whole rows are permuted.
    """

    heads: int
    packed: bool = field(default=True, init=False)

    def whole(self, rows: int) -> int:
        """Rows of the checkpoint's tensor for `rows` of the model's."""
        return rows

    def read(self, tensor: Tensor) -> Tensor:
        if tensor.dim() == 0 or tensor.shape[0] % (2 * self.heads):
            raise CheckpointError(
                f"a q or k of shape {tuple(tensor.shape)} does not contain {self.heads} heads of "
                "an even size"
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

    Several pairs with the same `theirs` split one tensor. `write` fills the other rows with zeros,
    so that the sum of all parts is the whole tensor.
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
                f"a weight of shape {tuple(tensor.shape)} does not contain {self.heads} heads of "
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
    """A pair of dotted patterns: `theirs` in the checkpoint, `ours` in the model.

    A component like `{i}` matches any one component. A pattern matches a tensor's name or a prefix
    of it; the rest of the name is kept.
    """

    theirs: str
    ours: str
    transform: Transform | None = None

    def match(self, name: str, *, write: bool = False) -> str | None:
        """The name on the other side, or None if the pattern does not match."""
        source, target = (self.ours, self.theirs) if write else (self.theirs, self.ours)
        found = compiled(source).fullmatch(name)
        if found is None:
            return None
        groups = found.groupdict()
        rest = groups.pop("_rest") or ""
        return target.format(**groups) + rest


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Compile a dotted pattern to a regular expression; the rest of the name is group `_rest`."""
    escaped = re.escape(pattern).replace(r"\{", "{").replace(r"\}", "}")
    body = re.sub(r"\{(\w+)\}", r"(?P<\1>[^.]+)", escaped)
    return re.compile(body + r"(?P<_rest>(?:\.[^.].*)?)")


@dataclass(frozen=True)
class Named:
    """A tensor's name in the model and in the checkpoint, and the transform between them."""

    name: str
    theirs: str
    transform: Transform | None


@dataclass(frozen=True, kw_only=True)
class Names:
    """The name pairs of one architecture, for hub checkpoints and for GGUF files.

    `tree` has the names of transformers' module tree, which adapters use, if they differ from the
    hub's; its pairs precede the hub's. `ignore` are patterns of tensors to skip (tables that follow
    from the config). A hub name without a pair is unchanged; a GGUF name without a pair is left
    over.
    """

    hub: Sequence[Pair] = ()
    gguf: Sequence[Pair] = ()
    tree: Sequence[Pair] = ()
    ignore: Sequence[str] = (
        "{any}.rotary_emb.inv_freq",
        "rope_freqs.weight",
        "rope_factors_long.weight",
        "rope_factors_short.weight",
    )

    def read(self, names: Iterable[str], space: str = "hub") -> tuple[list[Named], list[str]]:
        """Map checkpoint names to model names; the second list has the names without a match."""
        named, left = [], []
        for name in names:
            if found := self.find(name, space):
                named += found
            elif not self.ignored(name):
                left.append(name)
        return named, left

    def find(self, name: str, space: str) -> list[Named]:
        """Map one checkpoint name by the first matching pair and others with the same pattern."""
        found, pattern = list[Named](), ""
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


class NamesFunction(Protocol):
    """`Architecture.names`: the names of the weights in the files of one config."""

    def __call__(self, config: Any, /) -> Names: ...


def apply(transform: Transform | None, tensor: Tensor) -> Tensor:
    """Apply a transform to a checkpoint's tensor; the result is contiguous."""
    return tensor if transform is None else transform.read(tensor).contiguous()


FLOATS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
"""Float formats by name, the same in safetensors and GGUF."""
