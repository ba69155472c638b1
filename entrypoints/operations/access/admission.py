"""Admission: what a request becomes before the engine gets it, and what it counts as.

A claim is one request of a client; it may become several requests of the engine, such as one for
each prompt. The claim belongs to the context of the task that handles the client's request. So
every pipeline is bound by it, whatever the pipeline takes from the client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import blake2b

from msgspec.structs import replace

from ostro.core.errors import Overloaded
from ostro.core.messages.outputs import Output, TokenOutput
from ostro.core.messages.requests import PoolingRequest, Request, TokenRequest
from ostro.core.turns import OWNER
from ostro.entrypoints.operations.access.caller import ANYONE, Caller
from ostro.entrypoints.operations.access.quotas import Quota, Reservation, Taken


@dataclass(eq=False)
class Claim:
    """One request of a client, while the server works on it.

    caller, quota  the caller and the use of its limits
    route          the path of a request that does not come over HTTP, such as one of a batch
    rows, tokens   choices or inputs, and prompt tokens, of its requests in the engine
    document_bytes bytes of the stored documents that it holds, see `HeldDocuments`
    taken          what it took of the requests per minute
    releases       called when the request has ended
    """

    caller: Caller = ANYONE
    quota: Quota = field(default_factory=Quota)
    route: str = ""
    rows: int = 0
    tokens: int = 0
    document_bytes: int = 0
    taken: Taken | None = None
    releases: list[Callable[[], object]] = field(default_factory=list)

    def give_back(self) -> None:
        """Count the request towards no limit, since it is repeated."""
        self.quota.give_back(self.taken)


CLAIM: ContextVar[Claim | None] = ContextVar("CLAIM", default=None)
"""The claim of the running task, None outside of a client's request."""


@contextmanager
def claim(caller: Caller, quota: Quota | None = None, route: str = "") -> Iterator[Claim]:
    """Handle one request of a caller within the block. route: as in `Claim`. Raises RateLimited.

    Work that outlives the block still counts towards the caller's tokens.
    """
    found = Claim(caller, Quota() if quota is None else quota, route)
    found.taken = found.quota.enter()
    token, owner = CLAIM.set(found), OWNER.set(caller.name)
    try:
        yield found
    finally:
        CLAIM.reset(token)
        OWNER.reset(owner)
        found.quota.leave()
        for release in found.releases:
            release()


class Admission:
    """Admits requests to the engine: limits what is under way, running and waiting together.

    A client's request that exceeds a limit by itself is admitted while there is no other.
    `refused` counts the requests that a limit has refused.
    """

    def __init__(self, rows: int = 1024, tokens: int | None = None) -> None:
        """rows: choices and inputs. tokens: of their prompts, None for no limit."""
        self.max_rows, self.max_tokens = rows, tokens
        self.rows = self.tokens = 0
        self.refused = {"sequences": 0, "tokens": 0}

    def check(self) -> None:
        """Raise Overloaded if no further request is admitted now."""
        self.require(Claim(), 1, 0)

    def admit(self, request: Request) -> Admitted:
        """Admit a request of the running task's claim. Raises Overloaded and RateLimited."""
        own = CLAIM.get() or Claim()
        rows, tokens = rows_of(request), tokens_of(request)
        self.require(own, rows, tokens)
        return Admitted(self, own, bind(request, own.caller), rows, tokens)

    def require(self, own: Claim, rows: int, tokens: int) -> None:
        """Raise Overloaded if a claim cannot add this to what is under way."""
        if self.rows == own.rows:  # nothing else is under way
            return
        if self.rows + rows > self.max_rows:
            self.refused["sequences"] += 1
            raise Overloaded(
                f"{self.rows} sequences are under way, the limit is {self.max_rows}; the request "
                f"needs {rows}; try again later"
            )
        if self.max_tokens is not None and self.tokens + tokens > self.max_tokens:
            self.refused["tokens"] += 1
            raise Overloaded(
                f"prompts of {self.tokens} tokens are under way, the limit is {self.max_tokens}; "
                f"the request has {tokens}; try again later"
            )


class Admitted:
    """A request of the engine, from its admission to its end."""

    def __init__(
        self, admission: Admission, claim: Claim, request: Request, rows: int, tokens: int
    ) -> None:
        """Raises RateLimited."""
        self.admission, self.claim, self.request = admission, claim, request
        self.rows, self.tokens = rows, tokens
        self.generated = 0
        self.reservation = reserve(claim.quota, request, rows, tokens)
        self.add(1)

    def count(self, output: Output) -> None:
        """Count the tokens of an output."""
        if isinstance(output, TokenOutput):
            self.generated += len(output.tokens)

    def close(self) -> None:
        """End the request: release its place, and return the tokens that it did not use."""
        self.add(-1)
        self.reservation.settle(self.tokens + self.generated)

    def add(self, sign: int) -> None:
        for total in (self.admission, self.claim):
            total.rows += sign * self.rows
            total.tokens += sign * self.tokens


def reserve(quota: Quota, request: Request, rows: int, tokens: int) -> Reservation:
    """Reserve the tokens that a request can take. Raises RateLimited."""
    least = most = tokens
    if isinstance(request, TokenRequest):
        limit = request.sampling.max_tokens
        least += rows * min(1, 1 if limit is None else limit)
        most += rows * (limit or 0)
    return quota.reserve(least, most)


def bind(request: Request, caller: Caller) -> Request:
    """The request with a priority that it may claim; one for tokens with its owner and its salt.

    The salt applies to the cache of media too: its hits show in the time to the first token.
    """
    priority = caller.bounded_priority(request.priority)
    if not isinstance(request, TokenRequest):
        return replace(request, priority=priority)
    items = request.items
    if caller.salt:
        items = [replace(item, key=salted_key(caller.salt, item.key)) for item in items]
    salt = caller.salted(request.salt)
    return replace(request, owner=caller.name, salt=salt, priority=priority, items=items)


def salted_key(salt: str, key: bytes) -> bytes:
    """The key of a medium in the caches, for one caller."""
    return blake2b(salt.encode() + key, digest_size=16).digest()


def rows_of(request: Request) -> int:
    """The number of sequences of a request: choices, inputs, or one job."""
    if isinstance(request, TokenRequest):
        return request.sampling.n
    return len(request.inputs) if isinstance(request, PoolingRequest) else 1


def tokens_of(request: Request) -> int:
    """The number of prompt tokens of a request; 0 for a job."""
    if isinstance(request, TokenRequest):
        return len(request.tokens)
    return sum(map(len, request.inputs)) if isinstance(request, PoolingRequest) else 0
