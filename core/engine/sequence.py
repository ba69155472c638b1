"""A sequence: one choice of one request on its way through the loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from ostro.core.adapters.adapter import EMPTY, Mixture
from ostro.core.adapters.pool import NOTHING, MixtureLease
from ostro.core.engine.blocks import BlockTable, EncoderBlocks, Key, next_key
from ostro.core.engine.request import Finish, TokenLogprobs, TokenRequest

Failure = tuple[list["Sequence"], Exception]
"""Sequences, and the error that ends them."""


@dataclass(eq=False)
class Sequence:
    """Its tokens, how many of them are in the cache, and where.

    `tokens` are those the host knows, prompt first. `pending` counts tokens drawn on the device and
    not read yet. `computed` tokens have their K/V in the cache, or a launched step puts it there.
    `mixture` are the adapters that apply, `held` what lies on the device of them while it runs.

    An X-LoRA sequence is computed in two `passes`: with its mixture, and by the base model alone,
    whose hidden states give the scalings. It has block tables and keys of both, the mixed first.
    """

    request: TokenRequest
    index: int
    arrival: int
    seed: int
    root: Key
    limit: int
    tokens: list[int] = field(default_factory=list)
    prompt: int = 0
    leader: Sequence | None = None
    pending: int = 0
    computed: int = 0
    cached: int = 0
    row: int = -1
    tables: list[BlockTable] = field(default_factory=list)
    memories: list[EncoderBlocks] = field(default_factory=list)
    mixture: Mixture = EMPTY
    held: MixtureLease = NOTHING
    keys: list[list[Key]] = field(default_factory=lambda: [[], []])
    published: int = 0
    finish: Finish | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    reported: bool = False
    waits: bool = False

    @property
    def passes(self) -> int:
        """In how many passes its rows are computed."""
        return 1 if self.mixture.mixer is None else 2

    @property
    def scaling_end(self) -> int | None:
        """How many tokens have scalings of their own; those behind keep the last one's."""
        mixer = self.mixture.mixer if self.held.scaling is None else self.held.scaling.mixer
        return self.prompt + mixer.held_after if mixer and mixer.held_after else None

    @property
    def length(self) -> int:
        """All tokens, those still unread included."""
        return len(self.tokens) + self.pending

    @property
    def room(self) -> int:
        """The most tokens it will ever hold in the cache."""
        return self.prompt + self.limit

    @property
    def drawn(self) -> int:
        """Tokens drawn so far, those still unread included."""
        return self.length - self.prompt

    @property
    def order(self) -> tuple[int, int, int]:
        """Who goes first: lower priority number, then earlier arrival."""
        return self.request.priority, self.arrival, self.index

    @property
    def startable(self) -> bool:
        """Whether it may get a row: its tokens are known, and its leader's prompt is shared.

        The choices of one request wait for the first, whose blocks they then find in the tree.
        """
        leader = self.leader
        return not self.pending and (leader is None or leader.reported or leader.finish is not None)

    @property
    def ready(self) -> bool:
        """Whether its next rows may be planned; with DRY, or a processor that reads tokens on the
        host (`waits`), they wait for the unread ones.
        """
        if self.finish is not None or (self.drawn >= self.limit and self.pending):
            return False
        dry = self.request.sampling.dry
        return not self.pending or not (self.waits or (dry is not None and dry.multiplier > 0))

    @property
    def reads_prefix(self) -> bool:
        """Prompt logprobs need every row computed."""
        return self.request.cache and self.request.sampling.prompt_logprobs is None

    def chains(self, block: int, upto: int) -> list[list[Key]]:
        """Keys of the full blocks among the first `upto` known tokens, for each of its passes."""
        full = min(upto, len(self.tokens)) // block
        for way in range(self.passes):
            keys = self.keys[way]
            while len(keys) < full:
                start, stop = len(keys) * block, (len(keys) + 1) * block
                parent = keys[-1] if keys else self.root
                pairs = self.mixture.pairs(stop) if way == 0 else ()
                media = self.media(start, stop)
                keys.append(next_key(parent, self.tokens[start:stop], pairs, media))
        return [keys[:full] for keys in self.keys[: self.passes]]

    def media(self, start: int, stop: int) -> list[tuple[bytes, int, int]]:
        """Of each medium that the tokens start..stop hold rows of, its key, the first row, and
        which of the tokens has it.
        """
        found = list[tuple[bytes, int, int]]()
        for item in self.request.items:
            if item.since is not None and start <= item.since < stop:
                found.append((item.key, 0, item.since - start))
            done = 0
            for first, count in item.spans:
                if first < stop and first + count > start:
                    found.append((item.key, done + max(0, start - first), max(0, first - start)))
                done += count
        return found

    @cached_property
    def atoms(self) -> list[tuple[int, int]]:
        """Where spans begin and end whose rows see each other: no step ends within one."""
        atomic = [item.spans for item in self.request.items if item.atomic]
        return [(first, first + count) for spans in atomic for first, count in spans]

    def whole(self, start: int, stop: int) -> int:
        """Where a step from `start` to about `stop` may end: before an atom, or behind its own."""
        for first, end in self.atoms:
            if first < stop < end:
                return first if first > start else end
        return stop

    @cached_property
    def prompt_positions(self) -> list[list[int]] | None:
        """Positions of the prompt's tokens per axis, where they do not just count."""
        given = self.request.positions
        return None if given is None else given.numpy().tolist()

    def positions(self, start: int, stop: int, axes: int) -> list[list[int]]:
        """Positions [axes][stop - start]; behind the prompt they go on from its largest."""
        given = self.prompt_positions
        if given is None:
            return [list(range(start, stop))] * axes
        after = self.after - self.prompt
        rest = range(max(start, self.prompt) + after, max(stop, self.prompt) + after)
        return [[*axis[start:stop], *rest] for axis in given]

    @cached_property
    def after(self) -> int:
        """The position of the first token behind the prompt."""
        given = self.prompt_positions
        return self.prompt if given is None else max(max(axis) for axis in given) + 1
