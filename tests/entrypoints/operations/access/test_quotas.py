"""Quotas: token buckets with an injected clock, reservations, concurrency."""

from __future__ import annotations

import random

import pytest

from ostro.entrypoints.operations.access.keys import Key, sha256_of
from ostro.entrypoints.operations.access.quotas import (
    Bucket,
    Quota,
    Quotas,
    RateLimited,
    RequestTooLarge,
    duration,
)


def key(**fields: int) -> Key:
    return Key(name="alice", sha256=sha256_of("one"), **fields)  # type: ignore[arg-type]


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def quota_of(clock: Clock, **fields: int) -> Quota:
    return Quotas(clock).of("alice", key(**fields))


@pytest.mark.parametrize("interval", [0.05, 0.1, 0.4, 0.97])
def test_sixty_per_minute_are_exactly_these_over_three_minutes(
    clock: Clock, interval: float
) -> None:
    quota, accepted = quota_of(clock, requests_per_minute=60), list[float]()
    for i in range(int(180 / interval)):
        clock.now = 1000 + i * interval
        try:
            quota.enter()
        except RateLimited as error:
            assert 0 < error.retry_after <= 60
        else:
            accepted.append(clock.now)
            quota.leave()
    assert len(accepted) == 180
    for time in accepted:
        assert sum(time <= other < time + 60 for other in accepted) <= 60


def test_a_client_that_waits_as_told_is_accepted(clock: Clock) -> None:
    quota, refused = quota_of(clock, requests_per_minute=3), 0
    for _ in range(20):
        try:
            quota.enter()
        except RateLimited as error:
            clock.now += error.retry_after
            quota.enter()
            refused += 1
        quota.leave()
        clock.now += 0.5
    assert refused == 6 and quota.usage.refused == 6 and quota.usage.requests == 20


def test_random_use_of_a_bucket(clock: Clock) -> None:
    """The bucket agrees with a plain list of all that was taken, and its memory is bounded."""
    rng, bucket, log = random.Random(1), Bucket(5000, clock), list[tuple[float, int]]()
    for _ in range(4000):
        clock.now += rng.expovariate(40)
        amount = rng.randint(1, 20)
        used = sum(taken for time, taken in log if time + 60 > clock.now)
        if bucket.wait(amount):
            assert used + amount > 5000 - 20 * 4, "too strict by more than the resolution"
        else:
            assert used + amount <= 5000
            bucket.take(amount)
            log.append((clock.now, amount))
    assert len(bucket.taken) <= 1025
    clock.now += 60
    assert bucket.remaining == 5000 and bucket.reset == 0 and not bucket.taken


def test_a_clock_that_is_set_back(clock: Clock) -> None:
    bucket = Bucket(2, clock)
    bucket.take(2)
    clock.now -= 500
    assert bucket.remaining == 0 and bucket.wait(1) == 60 and bucket.reset == 60
    clock.now += 560
    assert bucket.remaining == 2


def test_unused_tokens_are_given_back(clock: Clock) -> None:
    quota = quota_of(clock, tokens_per_minute=100)
    first, second = quota.reserve(10, 60), quota.reserve(10, 40)
    with pytest.raises(RateLimited, match="100 tokens per minute; 1 for this") as found:
        quota.reserve(1, 1)
    assert found.value.retry_after == 60
    first.settle(25)
    assert quota.tokens is not None and quota.tokens.remaining == 35
    clock.now += 61  # the second ends after its minute: its tokens have returned already
    second.settle(0)
    assert quota.tokens.remaining == 100 and quota.tokens.used == 0


def test_tokens_beyond_a_reservation_are_taken(clock: Clock) -> None:
    quota = quota_of(clock, tokens_per_minute=100)
    quota.reserve(10, 20).settle(50)
    assert quota.tokens is not None and quota.tokens.remaining == 50
    quota.reserve(10, 40).settle(90)
    assert quota.tokens.remaining == 0
    with pytest.raises(RateLimited):
        quota.reserve(1, 1)


def test_a_request_reserves_at_most_the_limit(clock: Clock) -> None:
    """A request that states no max_tokens can take the rest of a long context."""
    quota = quota_of(clock, tokens_per_minute=100)
    taken = quota.reserve(10, 8000)
    assert taken.amount == 100
    taken.settle(150)  # used more than the limit: the next ones wait for it
    assert quota.tokens is not None and quota.tokens.remaining == 0
    with pytest.raises(RateLimited):
        quota.reserve(1, 1)
    with pytest.raises(RequestTooLarge, match="the request has 101 tokens"):
        quota.reserve(101, 101)
    clock.now += 60
    assert quota.reserve(10, 20).amount == 20


def test_concurrent_requests(clock: Clock) -> None:
    quota = quota_of(clock, concurrent_requests=2, requests_per_minute=10)
    quota.enter()
    quota.enter()
    with pytest.raises(RateLimited, match="2 requests of this API key are running"):
        quota.enter()
    assert quota.requests is not None and quota.requests.remaining == 8
    quota.leave()
    quota.enter()


def test_changed_limits_keep_what_was_used(clock: Clock) -> None:
    quotas = Quotas(clock)
    quota = quotas.of("alice", key(requests_per_minute=5))
    for _ in range(5):
        quota.enter()
    assert quotas.of("alice", key(requests_per_minute=6)) is quota
    quota.enter()
    with pytest.raises(RateLimited):
        quota.enter()
    quotas.of("alice", key(requests_per_minute=2))
    with pytest.raises(RateLimited):
        quota.enter()
    quotas.of("alice", key())
    quota.enter()
    assert quota.headers() == {}


def test_headers(clock: Clock) -> None:
    quota = quota_of(clock, requests_per_minute=60, tokens_per_minute=500)
    quota.enter()
    clock.now += 1.5
    quota.reserve(20, 120)
    assert quota.headers() == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "58.5s",
        "x-ratelimit-limit-tokens": "500",
        "x-ratelimit-remaining-tokens": "380",
        "x-ratelimit-reset-tokens": "1m0s",
    }


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.0001, "1ms"), (0.12, "120ms"), (1, "1s"), (1.5, "1.5s"), (61.25, "1m1.25s")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
