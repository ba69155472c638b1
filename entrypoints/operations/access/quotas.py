"""Quotas of callers: requests and tokens per minute, and concurrent requests."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf

from ostro.core.errors import OstroError
from ostro.entrypoints.operations.access.keys import Key

MINUTE = 60.0
RESOLUTION = MINUTE / 1024
"""Seconds within which what is taken from a bucket counts as taken at once, to bound its memory."""
BUSY_SECONDS = 1.0
"""When to retry after the limit on concurrent requests was reached, in seconds."""
Clock = Callable[[], float]


class RateLimited(OstroError):
    """A limit of the caller's key is reached. `retry_after`: when to repeat the request, in s."""

    status, code = 429, "rate_limit_exceeded"

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RequestTooLarge(OstroError):
    """A request exceeds the limit on its bytes, or the tokens per minute of the caller's key."""

    status, code = 413, "request_too_large"


@dataclass(eq=False)
class Taken:
    """Tokens that were taken from a bucket at about the same time, the last ones at `time`."""

    time: float
    amount: int


class Bucket:
    """A token bucket whose tokens return one minute after they were taken.

    So no minute, whenever it starts, has more than `limit` tokens.
    """

    def __init__(self, limit: int, clock: Clock = time.monotonic) -> None:
        self.limit, self.clock = limit, clock
        self.taken: deque[Taken] = deque()
        self.used = 0
        self.latest = -inf

    def now(self) -> float:
        """Return the time, which does not go back, after the return of tokens that are due."""
        self.latest = max(self.latest, self.clock())
        while self.taken and self.taken[0].time + MINUTE <= self.latest:
            self.used -= self.taken.popleft().amount
        return self.latest

    @property
    def remaining(self) -> int:
        """The tokens that can be taken now."""
        self.now()
        return max(0, self.limit - self.used)

    @property
    def reset(self) -> float:
        """Seconds until all tokens have returned."""
        now = self.now()
        return self.taken[-1].time + MINUTE - now if self.taken else 0.0

    def wait(self, amount: int) -> float:
        """Seconds until this number of tokens can be taken, infinity if it exceeds the limit."""
        if amount > self.limit:
            return inf
        now, missing, seconds = self.now(), self.used + amount - self.limit, 0.0
        for each in self.taken:
            if missing <= 0:
                break
            missing -= each.amount
            seconds = each.time + MINUTE - now
        return seconds

    def take(self, amount: int) -> Taken:
        """Take tokens. Taking more than remain is possible; later ones then wait longer."""
        now = self.now()
        self.used += amount
        if self.taken and self.taken[-1].time // RESOLUTION == now // RESOLUTION:
            self.taken[-1].time = now
            self.taken[-1].amount += amount
        else:
            self.taken.append(Taken(now, amount))
        return self.taken[-1]

    def give_back(self, taken: Taken, amount: int) -> None:
        """Return tokens before their minute is over."""
        if taken.time + MINUTE > self.now():
            taken.amount -= amount
            self.used -= amount
            while self.taken and not self.taken[-1].amount:
                self.taken.pop()


@dataclass
class QuotaUsage:
    """Counters of a caller, for `/metrics`."""

    requests: int = 0
    refused: int = 0
    running: int = 0


class Quota:
    """The use of one caller's limits. A limit of None is none."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.clock = clock
        self.requests: Bucket | None = None
        self.tokens: Bucket | None = None
        self.concurrent: int | None = None
        self.usage = QuotaUsage()

    def limit(self, key: Key) -> None:
        """Apply the limits of a key; what was taken before still counts."""
        self.requests = self.bucket(self.requests, key.requests_per_minute)
        self.tokens = self.bucket(self.tokens, key.tokens_per_minute)
        self.concurrent = key.concurrent_requests

    def bucket(self, known: Bucket | None, limit: int | None) -> Bucket | None:
        if limit is None:
            return None
        found = known or Bucket(limit, self.clock)
        found.limit = limit
        return found

    async def acquire(self) -> None:
        """Ask the process that counts the limits, if it is another one. Raises RateLimited."""

    def enter(self) -> Taken | None:
        """Count a request that begins, and return what it took. Raises RateLimited."""
        self.check()
        self.usage.requests += 1
        self.usage.running += 1
        return None if self.requests is None else self.requests.take(1)

    def give_back(self, taken: Taken | None) -> None:
        """Return what `enter` took for a request that is repeated."""
        if self.requests is not None and taken is not None:
            self.requests.give_back(taken, 1)

    def check(self) -> None:
        """Raise RateLimited if no request may begin now."""
        if self.concurrent is not None and self.usage.running >= self.concurrent:
            raise self.refusal(
                f"{self.usage.running} requests of this API key are running; it may have "
                f"{self.concurrent} at a time",
                BUSY_SECONDS,
            )
        if self.requests is not None and (seconds := self.requests.wait(1)):
            limit = self.requests.limit
            raise self.refusal(
                f"this API key may send {limit} requests per minute; repeat the request in "
                f"{duration(seconds)}",
                seconds,
            )

    def leave(self) -> None:
        """Count a request that has ended."""
        self.usage.running -= 1

    def reserve(self, least: int, most: int) -> Reservation:
        """Reserve the `most` tokens that a request can take, at most the limit.

        least: the tokens that it takes in any case. Raises RateLimited, and RequestTooLarge if
        they exceed the limit.
        """
        if self.tokens is None:
            return Reservation(None, None, 0)
        amount = max(least, min(most, self.tokens.limit))
        seconds = self.tokens.wait(amount)
        if seconds == inf:
            self.usage.refused += 1
            raise RequestTooLarge(
                f"the request has {least} tokens; this API key may use {self.tokens.limit} tokens "
                "per minute"
            )
        if seconds:
            raise self.refusal(
                f"this API key may use {self.tokens.limit} tokens per minute; {amount} for this "
                f"request are available in {duration(seconds)}; a smaller max_tokens needs fewer",
                seconds,
            )
        return Reservation(self.tokens, self.tokens.take(amount), amount)

    def refusal(self, message: str, retry_after: float) -> RateLimited:
        """Return the error of a request that is refused, and count it."""
        self.usage.refused += 1
        return RateLimited(message, retry_after)

    def headers(self) -> dict[str, str]:
        """OpenAI's headers x-ratelimit-limit, -remaining and -reset of requests and tokens."""
        found = {}
        for name, bucket in (("requests", self.requests), ("tokens", self.tokens)):
            if bucket is not None:
                found[f"x-ratelimit-limit-{name}"] = str(bucket.limit)
                found[f"x-ratelimit-remaining-{name}"] = str(bucket.remaining)
                found[f"x-ratelimit-reset-{name}"] = duration(bucket.reset)
        return found


@dataclass(frozen=True)
class Reservation:
    """Tokens that a request has reserved; all None and 0 without a limit."""

    bucket: Bucket | None
    taken: Taken | None
    amount: int

    def settle(self, used: int) -> None:
        """Return the tokens that the request did not use, or take those it used beyond."""
        if self.bucket is None or self.taken is None:
            return
        if used <= self.amount:
            self.bucket.give_back(self.taken, self.amount - used)
        else:
            self.bucket.take(used - self.amount)


class Quotas:
    """The quotas of all callers by name. They outlive changes of the keys file."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.clock = clock
        self.known: dict[str, Quota] = {}

    def of(self, name: str, key: Key | None = None) -> Quota:
        """The quota of a caller, with the limits of its key."""
        found = self.known.setdefault(name, Quota(self.clock))
        if key is not None:
            found.limit(key)
        return found


def duration(seconds: float) -> str:
    """A time as in OpenAI's headers: "120ms", "1.5s", "6m0s"; rounded up."""
    milliseconds = ceil(seconds * 1000 - 1e-6)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes}m{rest / 1000:g}s" if minutes else f"{rest / 1000:g}s"
