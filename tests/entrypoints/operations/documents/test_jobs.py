"""The queue of jobs: how often it is listed."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest

from ostro.core.plugins.manager import PluginManager
from ostro.core.store import new_id
from ostro.entrypoints.operations.documents import jobs
from ostro.entrypoints.operations.documents.jobs import Job, JobRunner
from ostro.entrypoints.operations.documents.state import State, open_state

KIND = "test_job"


class Runner(JobRunner):
    """Ends each job at once, in the order in which it started."""

    kind, name, most = KIND, "test", 4

    def __init__(self, state: State) -> None:
        super().__init__(state, poll=1000.0)
        self.worked: list[tuple[str, str]] = []
        self.lists, self.resumed = 0, asyncio.Event()
        self.resumed.set()

    async def work(self, owner: str, id: str) -> None:
        await self.resumed.wait()
        self.worked.append((owner, id))
        await self.state.delete(owner, KIND, id)

    async def waiting(self) -> dict[str, deque[str]]:
        ids = await super().waiting()
        self.lists += 1
        return ids


async def add(state: State, owner: str, count: int) -> list[str]:
    ids = [new_id("job_") for _ in range(count)]
    for id in ids:
        await state.put(owner, KIND, id, Job())
    return ids


def test_the_end_of_a_job_does_not_list_all_jobs() -> None:
    async def main() -> None:
        plugins = PluginManager()
        plugins.load()
        state = open_state("memory", None, plugins)
        runner = Runner(state)
        ann = await add(state, "ann", 300)
        running = asyncio.create_task(runner.run())
        while len(runner.worked) < 100:
            await asyncio.sleep(0)
        runner.resumed.clear()  # until the list, which a slow machine makes late
        bob = await add(state, "bob", 1)  # is announced: it does not wait for those of ann
        runner.notify()
        while runner.lists < 2:
            await asyncio.sleep(0.001)
        runner.resumed.set()
        while len(runner.worked) < 301:
            await asyncio.sleep(0)
        assert runner.lists == 2
        assert [id for owner, id in runner.worked if owner == "ann"] == ann
        assert ("bob", bob[0]) in runner.worked[:300]
        later = await add(state, "ann", 1)
        runner.notify()
        while len(runner.worked) < 302:
            await asyncio.sleep(0)
        assert runner.worked[-1] == ("ann", later[0])
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await state.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_listing_many_jobs_leaves_time_for_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        runner = Runner(State())
        assert runner.must_list()
        runner.listed, runner.listing_seconds = 100.0, 0.5
        for announced, now, lists in (
            (True, 109.0, False),
            (True, 110.0, True),
            (False, 110.0, False),
            (False, 1099.0, False),
            (False, 1100.0, True),
        ):
            runner.announced = announced
            monkeypatch.setattr(jobs, "monotonic", lambda now=now: now)
            assert runner.must_list() is lists
        runner.listing_seconds, runner.announced = 0.001, True
        monkeypatch.setattr(jobs, "monotonic", lambda: 100.0)
        assert not runner.must_list()
        await asyncio.wait_for(runner.changed.wait(), 60)  # it looks again after the pause

    asyncio.run(main())
