"""A sequence: the state of one choice of one request while the engine computes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from time import monotonic
from typing import Any

from ostro.core.adapters.adapter import EMPTY, Mixture
from ostro.core.adapters.pool import NOTHING, MixtureLease
from ostro.core.engine.blocks import BlockTable, EncoderBlocks, Key, next_key
from ostro.core.messages.outputs import Finish, TokenLogprobs
from ostro.core.messages.requests import TokenRequest

Failure = tuple[list["Sequence"], Exception]
"""Sequences, and the error that ends them."""


@dataclass(eq=False)
class Sequence:
    """Tokens of a sequence, how many of them are in the cache, and in which blocks.

    `tokens` are known on the host, the `prompt` tokens first; at most `limit` follow. `pending`
    counts tokens drawn on the device and not read yet. `computed` tokens have their K/V in the
    cache, or a launched step writes it. `published` counts the blocks that are cached under their
    keys, `cached` the prompt tokens that the prefix cache had. `row` is the sampler row, -1 while
    the sequence waits. `mixture` are the adapters that apply, `lease` their rows of the mixture
    table while the sequence runs. `reads_tokens`: sampling reads its tokens on the host, for DRY or
    a logits processor; `masks_only`: its processors only exclude tokens. `prepared` are the results
    of processors' `prepare`. `drafts` are the proposed tokens of the step in flight. `submitted`
    and `started` are times of `monotonic`; a preemption does not change them.

    An X-LoRA sequence is computed in two `passes`: with its mixture, and by the base model alone,
    whose hidden states give the scalings. It has block tables and keys of both passes, those of the
    mixture first.
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
    encoder_blocks: list[EncoderBlocks] = field(default_factory=list)
    mixture: Mixture = EMPTY
    lease: MixtureLease = NOTHING
    keys: list[list[Key]] = field(default_factory=lambda: [[], []])
    published: int = 0
    finish: Finish | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    reported: bool = False
    reads_tokens: bool = False
    masks_only: bool = False
    drafts: list[int] = field(default_factory=list)
    prepared: Mapping[str, Any] = field(default_factory=dict)
    submitted: float = field(default_factory=monotonic)
    started: float = 0.0

    @property
    def passes(self) -> int:
        """The number of passes that compute each row."""
        return 1 if self.mixture.mixer is None else 2

    @property
    def scaling_end(self) -> int | None:
        """The number of tokens with predicted scalings, or None for all; the rest keep the last."""
        mixer = self.mixture.mixer if self.lease.scaling is None else self.lease.scaling.mixer
        return self.prompt + mixer.held_after if mixer and mixer.held_after else None

    @property
    def length(self) -> int:
        """The number of tokens, pending ones included."""
        return len(self.tokens) + self.pending

    @property
    def max_length(self) -> int:
        """The most tokens that the sequence can have."""
        return self.prompt + self.limit

    @property
    def drawn(self) -> int:
        """The number of tokens drawn so far, pending ones included."""
        return self.length - self.prompt

    @property
    def order(self) -> tuple[int, int, int]:
        """The sort key of scheduling: lower priority number first, then earlier arrival."""
        return self.request.priority, self.arrival, self.index

    @property
    def startable(self) -> bool:
        """Whether the sequence may start: no token is pending, and its leader's prompt is cached.

        Further choices of a request wait for the first, whose prompt blocks they then share. A
        preempted sequence waits for its pending tokens: it computes them again as a prompt.
        """
        leader = self.leader
        return not self.pending and (leader is None or leader.reported or leader.finish is not None)

    @property
    def ready(self) -> bool:
        """Whether the next rows may be planned."""
        # At the limit the pending token is the last: a further row would be dropped.
        return self.finish is None and not (self.drawn >= self.limit and self.pending)

    @property
    def reads_prefix(self) -> bool:
        """Whether cached blocks may replace rows; prompt logprobs need every row computed."""
        return self.request.cache and self.request.sampling.prompt_logprobs is None

    def chains(self, block: int, upto: int) -> list[list[Key]]:
        """Keys of the full blocks among the first `upto` known tokens, for each pass."""
        full = min(upto, len(self.tokens)) // block
        for index in range(self.passes):
            keys = self.keys[index]  # a chain only grows: each key is computed once
            while len(keys) < full:
                start, stop = len(keys) * block, (len(keys) + 1) * block
                parent = keys[-1] if keys else self.root
                # The second pass is by the base alone: it shares blocks with base requests.
                pairs = self.mixture.pairs(stop) if index == 0 else ()
                media = self.media(start, stop)
                keys.append(next_key(parent, self.tokens[start:stop], pairs, media))
        return [keys[:full] for keys in self.keys[: self.passes]]

    def media(self, start: int, stop: int) -> list[tuple[bytes, int, int]]:
        """Media with rows among the tokens start..stop: (key, first row, offset of its token)."""
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
        """(start, stop) of spans whose rows attend to each other: no step may end within one."""
        atomic = [item.spans for item in self.request.items if item.atomic]
        return [(first, first + count) for spans in atomic for first, count in spans]

    def snap_to_atom(self, start: int, stop: int) -> int:
        """Move `stop` out of an atom: to its start, or to its end if the step starts there."""
        for first, end in self.atoms:
            if first < stop < end:
                return first if first > start else end
        return stop

    @cached_property
    def prompt_positions(self) -> list[list[int]] | None:
        """Positions [axes][prompt] of the request, or None for 0, 1, 2, ..."""
        given = self.request.positions
        return None if given is None else given.numpy().tolist()

    def positions(self, start: int, stop: int, axes: int) -> list[list[int]]:
        """Positions [axes][stop - start]; after the prompt they continue from its largest."""
        given = self.prompt_positions
        if given is None:
            return [list(range(start, stop))] * axes
        offset = self.next_position - self.prompt
        rest = range(max(start, self.prompt) + offset, max(stop, self.prompt) + offset)
        return [[*axis[start:stop], *rest] for axis in given]

    @cached_property
    def next_position(self) -> int:
        """The position of the first token after the prompt."""
        given = self.prompt_positions
        return self.prompt if given is None else max(max(axis) for axis in given) + 1
