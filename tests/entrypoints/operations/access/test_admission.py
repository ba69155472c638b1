"""Admission: rows and tokens under way, the caller's salt, priority and quota."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ostro.core.errors import Overloaded
from ostro.core.messages.outputs import TokenOutput
from ostro.core.messages.prompt import Item
from ostro.core.messages.requests import JobRequest, PoolingRequest, Sampling, TokenRequest
from ostro.core.turns import OWNER
from ostro.entrypoints.operations.access.admission import Admission, claim
from ostro.entrypoints.operations.access.caller import ANYONE, Caller
from ostro.entrypoints.operations.access.keys import Key
from ostro.entrypoints.operations.access.quotas import Quota, RateLimited

ALICE = Caller(name="alice", salt="secret alice", priority=2)


def ask(tokens: int = 10, n: int = 1, max_tokens: int | None = 5, **fields: Any) -> TokenRequest:
    sampling = Sampling(n=n, max_tokens=max_tokens)
    return TokenRequest(id="a", tokens=[1] * tokens, sampling=sampling, **fields)


def quota_of(**limits: int) -> Quota:
    quota = Quota()
    quota.limit(Key(name="alice", sha256="0" * 64, **limits))  # type: ignore[arg-type]
    return quota


def test_choices_count_as_rows() -> None:
    admission = Admission(rows=64)
    first = admission.admit(ask(n=60))
    with pytest.raises(Overloaded, match="60 sequences are under way, the limit is 64"):
        admission.admit(ask(n=5))
    second = admission.admit(ask(n=4))
    with pytest.raises(Overloaded):
        admission.check()
    first.close()
    admission.check()
    second.close()
    assert (admission.rows, admission.tokens) == (0, 0)


def test_inputs_and_jobs_count_as_rows() -> None:
    admission = Admission(rows=3)
    admission.admit(PoolingRequest(id="a", inputs=[[1, 2], [3]]))
    assert (admission.rows, admission.tokens) == (2, 3)
    admission.admit(JobRequest(id="b"))
    with pytest.raises(Overloaded):
        admission.admit(JobRequest(id="c"))


def test_prompt_tokens_are_limited() -> None:
    admission = Admission(rows=100, tokens=25)
    admission.admit(ask(20))
    with pytest.raises(Overloaded, match="prompts of 20 tokens are under way, the limit is 25"):
        admission.admit(ask(6))
    admission.admit(ask(5))


def test_a_request_beyond_the_limits_is_admitted_alone() -> None:
    admission = Admission(rows=4, tokens=10)
    with claim(ANYONE):
        prompts = [admission.admit(ask(20, n=3)) for _ in range(3)]
    with pytest.raises(Overloaded):
        admission.admit(ask(1))
    for each in prompts:
        each.close()
    other = admission.admit(ask(1))
    with claim(ANYONE), pytest.raises(Overloaded):
        admission.admit(ask(1, n=4))
    other.close()
    assert (admission.rows, admission.tokens) == (0, 0)


def test_jobs_and_inputs_have_the_priority_of_their_caller() -> None:
    admission = Admission()
    for request in (JobRequest(id="a"), PoolingRequest(id="b", inputs=[[1]])):
        with claim(ALICE):
            assert admission.admit(request).request.priority == 2
        assert admission.admit(request).request.priority == 0


def test_the_caller_binds_salt_and_priority() -> None:
    admission = Admission()
    assert admission.admit(ask(salt="mine", priority=-3)).request == ask(salt="mine", priority=-3)
    with claim(ALICE):
        found = admission.admit(ask(salt="mine", priority=-3)).request
        assert isinstance(found, TokenRequest)
        assert found.owner == ALICE.name == OWNER.get()
        assert found.priority == 2 and found.salt == ALICE.salted("mine") != "mine"
        late = admission.admit(ask(priority=7)).request
        assert isinstance(late, TokenRequest) and late.priority == 7
    with claim(Caller(name="bob", salt="secret bob")):
        other = admission.admit(ask(salt="mine")).request
    assert isinstance(other, TokenRequest) and other.salt not in (found.salt, "mine")
    assert other.owner == "bob" and OWNER.get() == ""


def test_callers_share_no_media() -> None:
    item = Item(kind="image", key=b"k", arrays={})
    keys = set()
    for caller in (ANYONE, ALICE, Caller(name="bob", salt="secret bob")):
        with claim(caller):
            for _ in range(2):
                request = Admission().admit(ask(items=[item])).request
                assert isinstance(request, TokenRequest)
                keys.add(request.items[0].key)
    assert len(keys) == 3 and b"k" in keys


def test_the_claim_reaches_tasks_of_its_request_alone() -> None:
    admission, salts = Admission(), dict[str, str]()

    async def work(caller: Caller) -> None:
        await asyncio.sleep(0)
        request = admission.admit(ask()).request
        assert isinstance(request, TokenRequest)
        salts[caller.name] = request.salt

    async def handle(caller: Caller) -> None:
        with claim(caller):
            await asyncio.ensure_future(work(caller))

    async def main() -> None:
        await asyncio.gather(handle(ALICE), handle(Caller(name="bob", salt="b")), handle(ANYONE))

    asyncio.run(main())
    assert salts["alice"] == ALICE.salted("") and salts[""] == "" and len({*salts.values()}) == 3


def test_tokens_are_reserved_and_what_is_unused_returns() -> None:
    admission, quota = Admission(), quota_of(tokens_per_minute=100)
    assert quota.tokens is not None
    with claim(ALICE, quota):
        first = admission.admit(ask(10, n=2, max_tokens=20))
        assert quota.tokens.remaining == 50
        with pytest.raises(RateLimited):
            admission.admit(ask(10, max_tokens=50))
        assert (admission.rows, quota.usage.refused) == (2, 1)
        first.count(TokenOutput(id="a", tokens=[1, 2]))
        first.count(TokenOutput(id="a", index=1, tokens=[3], finish="stop"))
    first.close()  # such as a client that disconnects
    assert quota.tokens.remaining == 87 and admission.rows == 0
    assert (quota.usage.requests, quota.usage.running) == (1, 0)


def test_a_prompt_that_generates_nothing() -> None:
    admission, quota = Admission(), quota_of(tokens_per_minute=10)
    admission_of = admission.admit
    with claim(ALICE, quota):
        admission_of(ask(10, max_tokens=0)).close()
    assert quota.tokens is not None and quota.tokens.remaining == 0


def test_a_slot_is_released_after_an_error() -> None:
    quota = quota_of(concurrent_requests=1)
    with pytest.raises(ZeroDivisionError), claim(ALICE, quota):
        with pytest.raises(RateLimited), claim(ALICE, quota):
            pass
        raise ZeroDivisionError
    with claim(ALICE, quota):
        assert quota.usage.running == 1
    assert quota.usage.running == 0
