"""The engine and the limits of keys, as a worker sees them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from ostro.core.errors import EngineDied, Overloaded
from ostro.core.messages.commands import Abort, ListAdapters, ModelInfo, Outputs, Ready
from ostro.core.messages.outputs import TokenOutput
from ostro.core.messages.requests import TokenRequest
from ostro.entrypoints.http.workers.engine import WorkerEngine, WorkerQuotas
from ostro.entrypoints.http.workers.messages import Enter, Leave, Refused, Submit
from ostro.entrypoints.operations.access.admission import claim
from ostro.entrypoints.operations.access.caller import Caller
from ostro.entrypoints.operations.access.keys import Key, sha256_of
from ostro.entrypoints.operations.access.quotas import RateLimited

KEY = Key(name="ann", sha256=sha256_of("ann"))


def test_a_refusal_keeps_the_error() -> None:
    for error in (RateLimited("slow down", 2.5), Overloaded("full", param="model")):
        refused = msgspec.msgpack.decode(
            msgspec.msgpack.encode(Refused.of(error, id="a")), type=Refused
        )
        found = refused.error()
        assert type(found) is type(error) and str(found) == str(error)
        assert found.param == error.param
        assert getattr(found, "retry_after", None) == getattr(error, "retry_after", None)


def test_the_server_admits_http_requests() -> None:
    async def main() -> None:
        sent: list[Any] = []
        quotas = WorkerQuotas(sent.append)
        first, second, third = (quotas.of("ann", KEY) for _ in range(3))
        waiting = [asyncio.ensure_future(each.acquire()) for each in (first, second, third)]
        await asyncio.sleep(0)
        assert [each.claim for each in sent] == [0, 1, 2] and sent[0].key == KEY.digest
        quotas.answer(0, {"x-ratelimit-limit-requests": "5"})
        quotas.answer(1, {}, RateLimited("slow down", 2.5))
        waiting[2].cancel()
        await waiting[0]
        assert first.headers() == {"x-ratelimit-limit-requests": "5"}
        with pytest.raises(RateLimited):
            await waiting[1]
        with pytest.raises(asyncio.CancelledError):
            await waiting[2]
        # The server ignores the end of a request that it refused.
        assert [each for each in sent if isinstance(each, Leave)] == [Leave(1), Leave(2)]
        with claim(Caller(), first):
            pass
        assert sent[-1] == Leave(0) and not quotas.under_way and not quotas.entering

    asyncio.run(main())


def test_requests_state_their_claim() -> None:
    async def main() -> None:
        sent: list[Any] = []
        engine, quotas = WorkerEngine(sent.append), WorkerQuotas(sent.append)
        request = TokenRequest(id="a", tokens=[1])
        with pytest.raises(Overloaded, match="loading"):
            await anext(engine.generate(request))
        engine.info = Ready(models={"m": ModelInfo()})
        quota = quotas.of("ann", KEY)
        with claim(Caller(), quota):
            outputs = engine.generate(request)
            first = asyncio.ensure_future(anext(outputs))
            await asyncio.sleep(0)
            [submit] = sent
            assert isinstance(submit, Submit)
            assert (submit.claim, submit.key, submit.route) == (quota.number, KEY.digest, "other")
            engine.deliver(Outputs([TokenOutput(id="a", tokens=[5])]))
            assert (await first).tokens == [5]
            await outputs.aclose()
            assert sent[-1] == Abort("a")
        outputs = engine.generate(request)
        first = asyncio.ensure_future(anext(outputs))
        await asyncio.sleep(0)
        assert sent[-1].claim is None
        engine.refuse("a", Overloaded("full"))
        with pytest.raises(Overloaded, match="full"):
            await first

    asyncio.run(main())


def test_nothing_waits_for_a_server_that_has_ended() -> None:
    async def main() -> None:
        sent: list[Any] = []
        engine, quotas = WorkerEngine(sent.append), WorkerQuotas(sent.append)
        engine.info = Ready(models={"m": ModelInfo()})
        waits = [
            asyncio.ensure_future(quotas.of("").acquire()),
            asyncio.ensure_future(engine.adapt(ListAdapters())),
            asyncio.ensure_future(anext(engine.generate(TokenRequest(id="a", tokens=[1])))),
        ]
        await asyncio.sleep(0)
        assert Enter(claim=0, key=None) in sent
        engine.lose()
        quotas.lose()
        for each in waits:
            with pytest.raises(EngineDied):
                await each

    asyncio.run(main())
