"""Adapter weights as plugins read them: factors by the names of the weights that they change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from ostro.core.errors import AdapterError
from ostro.core.load.container import Container
from ostro.core.records import Files


def no_member(path: str) -> AdapterWeights:
    """Raise AdapterError: a member of an adapter has no members itself."""
    raise AdapterError(f"{path!r:.80} cannot be a member: adapters are mixed one level deep")


@dataclass(frozen=True, kw_only=True)
class AdapterSource:
    """The folder that an adapter is read from.

    `files` has its file names and parsed JSON; `config` is its adapter_config.json, empty without
    one. `open(name)` opens one of its weight files, safetensors or GGUF. `member(path)` reads a
    member of the adapter, whose folder is in this one or beside it; it raises AdapterForbidden for
    any other folder.
    """

    files: Files
    config: Mapping[str, Any]
    open: Callable[[str], Container]
    member: Callable[[str], AdapterWeights] = no_member


@dataclass(frozen=True, kw_only=True)
class LowRank:
    """A low-rank change of a weight W [n, k]: scale * B A, and scale * bias to the output.

    a [r, k], b [n, r], bias [n]; for stacked experts a [e, r, k] and b [e, n, r]. `magnitude` [n]
    is DoRA's (Liu et al. 2024): row i of W + scale * B A is scaled to the norm magnitude[i]. An
    embedding's W is its table, n tokens by k dimensions.
    """

    a: Tensor
    b: Tensor
    scale: float = 1.0
    bias: Tensor | None = None
    magnitude: Tensor | None = None

    @property
    def rank(self) -> int:
        return self.a.shape[-2]

    @property
    def adds(self) -> bool:
        """Whether it can change anything. Training begins with a B of zeros."""
        return bool(self.b.any()) or self.bias is not None or self.magnitude is not None

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors by the names of their fields."""
        fields = {"a": self.a, "b": self.b, "bias": self.bias, "magnitude": self.magnitude}
        return {name: tensor for name, tensor in fields.items() if tensor is not None}


@dataclass(frozen=True, kw_only=True)
class Mixer:
    """X-LoRA's classifier (Buehler and Buehler 2024), which scales each member for each row.

    `scalings(hidden)` maps the last hidden states [t, d] of rows under the base alone to scalings
    [t, layers, adapters] float32; `layers` has the index of the layer by the name of a weight.
    `tensors` are all its weights, for its identity and its size.
    """

    scalings: Callable[[Tensor], Tensor]
    layers: Mapping[str, int]
    tensors: Mapping[str, Tensor]
    width: int
    held_after: int = 0  # generated tokens after which the scalings no longer change; 0 = never


@dataclass(frozen=True, kw_only=True)
class AdapterWeights:
    """An adapter as its plugin reads it.

    `weights` are by the dotted name of the weight that they change, without ".weight", in a name
    `space`: "tree" is transformers' module tree, which PEFT uses, "gguf" that of GGUF files.
    `whole` are tensors that replace the base's (PEFT's modules_to_save), by full name. `invocation`
    are the tokens from which on an activated adapter applies (aLoRA, 2025), `template` is its chat
    template, `tokens` are the ids of its special tokens. `config` are further values that are part
    of its identity. `base` is the model that it was trained for, as its files name it.

    An X-LoRA adapter has `members` in the order of its `mixer`'s scalings, and no own weights.
    """

    kind: str
    weights: Mapping[str, LowRank] = field(default_factory=dict)
    space: Literal["tree", "gguf"] = "tree"
    whole: Mapping[str, Tensor] = field(default_factory=dict)
    invocation: tuple[int, ...] = ()
    template: str | None = None
    tokens: Mapping[str, int] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    base: str = ""
    members: Sequence[AdapterWeights] = ()
    mixer: Mixer | None = None

    @cached_property
    def generation(self) -> str:
        """The identity of these weights: sha256 of their fields and bytes, in hexadecimal."""
        state = hashlib.sha256()
        fields: list[Any] = [self.kind, self.space, list(self.invocation), self.template]
        fields += [dict(self.tokens), dict(self.config)]
        scales = {name: each.scale for name, each in sorted(self.weights.items())}
        # Files may list tensors and keys in any order: the hash must not depend on it.
        state.update(json.dumps([fields, scales], sort_keys=True, default=str).encode())
        for name, tensor in self.tensors():
            state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
            state.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
        for member in self.members:
            state.update(member.generation.encode())
        return state.hexdigest()

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The adapter's own tensors by name, without those of its members."""
        for name, each in sorted(self.weights.items()):
            yield from ((f"{name}.{key}", tensor) for key, tensor in each.tensors.items())
        yield from sorted(self.whole.items())
        if self.mixer is not None:
            yield from sorted(self.mixer.tensors.items())

    @property
    def nbytes(self) -> int:
        """Bytes of all its tensors."""
        own = sum(tensor.nbytes for _, tensor in self.tensors())
        return own + sum(member.nbytes for member in self.members)


class AdapterReader(Protocol):
    """`Adapter.load`: reads the weights of an adapter folder that the record claims."""

    def __call__(self, source: AdapterSource, /) -> AdapterWeights: ...
