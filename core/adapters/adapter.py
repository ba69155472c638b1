"""Loaded adapters, packed in pages on the host for one model, and mixtures of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ostro.core.adapters.delta import AdapterDelta, Factors, PackedFactors
from ostro.core.adapters.weights import Mixer
from ostro.core.nn.storage import Storage


@dataclass(eq=False, kw_only=True)
class LoadedAdapter:
    """An adapter in host memory, by the deltas of the model that it changes.

    `packed` are its pages by delta, `pages` of them in each. `factors` and `biases` are those of
    modules with DoRA or biases, from which the engine's thread computes `gains`: this needs
    products with the base's weights. `whole` are weights that replace the base's, `unplaced` those
    that `AdapterLoader.place` has not moved to the device. An X-LoRA adapter
    has `members`, a `mixer`, and `routes`: the layer of the scalings for each part of a delta; each
    part of its members has its own one of `sets` sets of pages. `effect` is how much the adapter
    changes the model's outputs, None if unknown; `encodes` is true if it also changes encoders of
    media, which text does not pass.
    """

    generation: str
    kind: str
    rank: int
    pages: int
    base: str = ""
    packed: dict[AdapterDelta, PackedFactors] = field(default_factory=dict)
    factors: dict[AdapterDelta, Factors] = field(default_factory=dict)
    biases: dict[AdapterDelta, Mapping[str, Tensor]] = field(default_factory=dict)
    gains: dict[AdapterDelta, Tensor] = field(default_factory=dict)
    whole: dict[AdapterDelta, Storage] = field(default_factory=dict)
    unplaced: dict[AdapterDelta, Tensor] = field(default_factory=dict)
    invocation: tuple[int, ...] = ()
    template: str | None = None
    members: Sequence[LoadedAdapter] = ()
    mixer: Mixer | None = None
    routes: Mapping[tuple[AdapterDelta, int], int] = field(default_factory=dict)
    sets: int = 1
    matched: Sequence[str] = ()
    norms: Mapping[str, float] = field(default_factory=dict)
    effect: float | None = None
    encodes: bool = False

    @property
    def special(self) -> bool:
        """Whether it needs a special slot: it has gains, biases or whole weights."""
        return bool(self.factors or self.biases or self.whole)

    @property
    def deltas(self) -> list[AdapterDelta]:
        """The deltas that it changes itself, without its members."""
        return list(dict.fromkeys([*self.packed, *self.factors, *self.biases, *self.whole]))

    @property
    def all_pages(self) -> int:
        """The number of its pages and of those of its members."""
        return self.pages + sum(member.pages for member in self.members)

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that it uses."""
        own = sum(a.nbytes + b.nbytes for a, b in self.packed.values())
        own += sum(storage.nbytes for storage in self.whole.values())
        mixer = () if self.mixer is None else self.mixer.tensors.values()
        own += sum(tensor.nbytes for tensor in mixer)
        return own + sum(member.nbytes for member in self.members)


@dataclass(eq=False)
class PooledAdapter:
    """An adapter on the device: its pages, its special slot, and how many mixture rows use it."""

    adapter: LoadedAdapter
    pages: list[int]
    slot: int | None
    users: int = 0


@dataclass(frozen=True, eq=False)
class WeightedAdapter:
    """One adapter of a mixture, its scale, and the first token that it applies to."""

    adapter: LoadedAdapter
    scale: float
    since: int = 0


@dataclass(frozen=True, eq=False)
class Mixture:
    """The adapters that apply to a sequence; none for the base alone."""

    shares: tuple[WeightedAdapter, ...] = ()

    @property
    def mixer(self) -> Mixer | None:
        """The classifier of an X-LoRA adapter, which is always the only one of a mixture."""
        return self.shares[0].adapter.mixer if self.shares else None

    @property
    def generations(self) -> tuple[str, ...]:
        """The generations of its adapters."""
        return tuple(share.adapter.generation for share in self.shares)

    @property
    def starts(self) -> list[int]:
        """The tokens at which the set of adapters changes."""
        return sorted({share.since for share in self.shares})

    def at(self, token: int) -> tuple[WeightedAdapter, ...]:
        """The adapters that apply to a token."""
        return tuple(share for share in self.shares if share.since <= token)

    def pairs(self, stop: int) -> tuple[tuple[str, float], ...]:
        """(generation, scale) of the adapters that apply to a token before `stop`, for block keys.

        The first token is part of the key: two blocks with the same tokens differ if an adapter
        applies from different tokens on.
        """
        return tuple(
            (f"{s.adapter.generation}@{s.since}" if s.since else s.adapter.generation, s.scale)
            for s in self.shares
            if s.since < stop
        )


EMPTY = Mixture()
