"""What an adapter is, read from its files: factors by the names of the weights that they change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from ostro.core.errors import AdapterError
from ostro.core.load.container import Container
from ostro.core.records import Files


def no_member(path: str) -> AdapterWeights:
    """Refuse a member: members have none themselves."""
    raise AdapterError(f"{path!r:.80} cannot be a member: adapters are mixed one level deep")


@dataclass(frozen=True, kw_only=True)
class AdapterSource:
    """The folder that an adapter is read from.

    `files` has its names and parsed JSON, `config` is its adapter_config.json, empty where it has
    none. `open(name)` opens one of its weight files, safetensors or GGUF. `member(path)` reads an
    adapter that it mixes, whose folder lies in this one or beside it; raises AdapterForbidden for
    one that lies elsewhere.
    """

    files: Files
    config: Mapping[str, Any]
    open: Callable[[str], Container]
    member: Callable[[str], AdapterWeights] = no_member


@dataclass(frozen=True, kw_only=True)
class LowRank:
    """What an adapter adds to a weight W [n, k]: scale * B A, and scale * bias to its answer.

    a [r, k], b [n, r], bias [n]; of stacked experts a [e, r, k] and b [e, n, r]. `magnitude` [n] is
    DoRA's (Liu et al. 2024): row i of W + scale * B A is brought to the length magnitude[i]. An
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
        """Whether it can change anything: a B of zeros is what training begins with."""
        return bool(self.b.any()) or self.bias is not None or self.magnitude is not None

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Its tensors by the names of its fields."""
        held = {"a": self.a, "b": self.b, "bias": self.bias, "magnitude": self.magnitude}
        return {name: tensor for name, tensor in held.items() if tensor is not None}


@dataclass(frozen=True, kw_only=True)
class Mixer:
    """X-LoRA's classifier (Buehler and Buehler 2024): how much of each adapter a row takes.

    `scalings(hidden)` makes of a row's last hidden states [t, d] under the base alone scalings
    [t, layers, adapters] float32; `layers` gives by the name of a weight the layer it goes by.
    `tensors` are all its weights, for its identity and its size.
    """

    scalings: Callable[[Tensor], Tensor]
    layers: Mapping[str, int]
    tensors: Mapping[str, Tensor]
    width: int
    held_after: int = 0  # tokens drawn after which the scalings stay as they are; 0 = never


@dataclass(frozen=True, kw_only=True)
class AdapterWeights:
    """An adapter as its plugin reads it.

    `weights` by the dotted name of the weight that they change, without ".weight", in a name
    `space`: "tree" is transformers' module tree, which PEFT uses, "gguf" that of GGUF files.
    `whole` are tensors that take the place of the base's (PEFT's modules_to_save), by full name.
    `invocation` are the tokens from which on an activated adapter applies (aLoRA, 2025), `template`
    its own chat template, `tokens` ids by the special tokens that it knows. `config` are facts
    beside the tensors that make it what it is. `base` is the model that it says it was made for.

    An X-LoRA adapter has `members` in the order of its `mixer`'s scalings, and no weights itself.
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
        """What names these very weights: sha256 of their facts and bytes, in hexadecimal."""
        state = hashlib.sha256()
        said = [dict(self.tokens), dict(self.config)]
        facts = [self.kind, self.space, list(self.invocation), self.template, *said]
        scales = {name: each.scale for name, each in sorted(self.weights.items())}
        state.update(json.dumps([facts, scales], sort_keys=True, default=str).encode())
        for name, tensor in self.tensors():
            state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
            state.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
        for member in self.members:
            state.update(member.generation.encode())
        return state.hexdigest()

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Its own tensors by name, without its members'."""
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
