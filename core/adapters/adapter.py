"""An adapter made ready for one model: on the host, in pages, and what is known of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ostro.core.adapters.delta import AdapterDelta, Factors, Filled
from ostro.core.adapters.weights import Mixer
from ostro.core.nn import Storage


@dataclass(eq=False, kw_only=True)
class LoadedAdapter:
    """Its pages by table, `pages` of them in each; what is special, in tables of its own.

    `factors` and `biases` are kept of tables with gains alone, until those are measured (`gains`):
    that takes products with the base's weights, in the engine's own thread. `members` and `mixer`
    make it an X-LoRA adapter, whose `routes` say by which layer of its scalings a part of a table
    goes; the parts of its members lie apart, in `sets` of pages. `effect` is how much it
    changes what the model says, where that was tried; it `encodes` where it changes more than text
    passes through: what encoders make of media.
    """

    generation: str
    kind: str
    rank: int
    pages: int
    base: str = ""
    filled: dict[AdapterDelta, Filled] = field(default_factory=dict)
    factors: dict[AdapterDelta, Factors] = field(default_factory=dict)
    biases: dict[AdapterDelta, Mapping[str, Tensor]] = field(default_factory=dict)
    gains: dict[AdapterDelta, Tensor] = field(default_factory=dict)
    whole: dict[AdapterDelta, Storage] = field(default_factory=dict)
    invocation: tuple[int, ...] = ()
    template: str | None = None
    members: Sequence[LoadedAdapter] = ()
    mixer: Mixer | None = None
    routes: Mapping[tuple[AdapterDelta, int], int] = field(default_factory=dict)
    sets: int = 1
    matched: Sequence[str] = ()
    unmatched: Sequence[str] = ()
    norms: Mapping[str, float] = field(default_factory=dict)
    effect: float | None = None
    encodes: bool = False

    @property
    def special(self) -> bool:
        """Whether it takes a special slot: it has gains, biases or whole weights."""
        return bool(self.factors or self.biases or self.whole)

    @property
    def tables(self) -> list[AdapterDelta]:
        """All that it changes itself."""
        return list(dict.fromkeys([*self.filled, *self.factors, *self.biases, *self.whole]))

    @property
    def all_pages(self) -> int:
        """Its pages and those of its members."""
        return self.pages + sum(member.pages for member in self.members)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes on the host."""
        own = sum(a.nbytes + b.nbytes for a, b in self.filled.values())
        own += sum(storage.nbytes for storage in self.whole.values())
        mixer = () if self.mixer is None else self.mixer.tensors.values()
        own += sum(tensor.nbytes for tensor in mixer)
        return own + sum(member.nbytes for member in self.members)


@dataclass(frozen=True, eq=False)
class WeightedAdapter:
    """One adapter of a mixture: how much of it, and from which token on."""

    adapter: LoadedAdapter
    scale: float
    since: int = 0


@dataclass(frozen=True, eq=False)
class Mixture:
    """The adapters that apply to a sequence; empty for the base alone."""

    shares: tuple[WeightedAdapter, ...] = ()

    @property
    def mixer(self) -> Mixer | None:
        """Of an X-LoRA adapter what draws its scalings."""
        return self.shares[0].adapter.mixer if self.shares else None

    @property
    def generations(self) -> tuple[str, ...]:
        """Of its adapters."""
        return tuple(share.adapter.generation for share in self.shares)

    @property
    def starts(self) -> list[int]:
        """The tokens from which another set of shares applies."""
        return sorted({share.since for share in self.shares})

    def at(self, token: int) -> tuple[WeightedAdapter, ...]:
        """The shares that apply to a token."""
        return tuple(share for share in self.shares if share.since <= token)

    def pairs(self, stop: int) -> tuple[tuple[str, float], ...]:
        """(generation, scale) of what applies to any of the tokens before `stop`: for block keys,
        which hold for an adapter that begins inside the block as well where it begins.
        """
        return tuple(
            (f"{s.adapter.generation}@{s.since}" if s.since else s.adapter.generation, s.scale)
            for s in self.shares
            if s.since < stop
        )


EMPTY = Mixture()
