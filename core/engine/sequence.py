"""A sequence: one choice of one request on its way through the loop."""

from __future__ import annotations

from dataclasses import dataclass, field

from ostro.core.engine.blocks import Key, Table, next_key
from ostro.core.engine.request import Finish, TokenLogprobs, TokenRequest


@dataclass(eq=False)
class Sequence:
    """Its tokens, how many of them are in the cache, and where.

    `tokens` are those the host knows, prompt first. `pending` counts tokens drawn on the device and
    not read yet. `computed` tokens have their K/V in the cache, or a launched step puts it there.
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
    tables: list[Table] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)
    published: int = 0
    finish: Finish | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    reported: bool = False

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
        """Whether its next rows may be planned: those with DRY wait for their unread tokens."""
        if self.finish is not None or (self.drawn >= self.limit and self.pending):
            return False
        dry = self.request.sampling.dry
        return not (self.pending and dry is not None and dry.multiplier > 0)

    @property
    def reads_prefix(self) -> bool:
        """Prompt logprobs need every row computed."""
        return self.request.cache and self.request.sampling.prompt_logprobs is None

    def chain(self, block: int, upto: int) -> list[Key]:
        """Keys of the full blocks among the first `upto` known tokens."""
        full = min(upto, len(self.tokens)) // block
        while len(self.keys) < full:
            i = len(self.keys)
            parent = self.keys[-1] if self.keys else self.root
            tokens = self.tokens[i * block : (i + 1) * block]
            self.keys.append(next_key(parent, tokens, self.request.mixture))
        return self.keys[:full]
