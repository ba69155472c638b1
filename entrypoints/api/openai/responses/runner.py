"""Generates responses in the background: one server at a time works on a response."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from ostro.core.errors import DocumentNotFound, OstroError, Overloaded, StoreError
from ostro.entrypoints.api.openai.responses.response import (
    Response,
    StoredInput,
    StoredResponse,
    failed,
)
from ostro.entrypoints.api.openai.responses.responses import ResponseRun, Responses
from ostro.entrypoints.api.openai.responses.store import INPUT_KIND, JOB_KIND, KIND
from ostro.entrypoints.api.openai.responses.tools import offered_functions
from ostro.entrypoints.operations.access.caller import Caller
from ostro.entrypoints.operations.access.quotas import RateLimited
from ostro.entrypoints.operations.documents.jobs import (
    LEASE_SECONDS,
    POLL_SECONDS,
    JobRunner,
    ModelNotServed,
)
from ostro.entrypoints.operations.executor import Acting

log = logging.getLogger(__name__)
MAX_RUNNING = 64
"""Responses that a server generates in the background at once."""
CHECK_SECONDS = 0.1
"""Interval at which events are stored."""
RETRY_SECONDS = 0.5, 30.0
"""First and longest wait before a response is tried again for which there was no capacity."""
WAIT_SECONDS = 3600.0
"""Time after which such a response fails."""


class InputModel(msgspec.Struct):
    """A `StoredInput` of which only the model is decoded."""

    model: str = ""


class Interrupted(OstroError):
    """The server ended while a response was generated."""


class ResponseRunner(JobRunner):
    """Generates responses in the background until `run` is cancelled."""

    kind, name, most = JOB_KIND, "response", MAX_RUNNING

    def __init__(
        self,
        responses: Responses,
        acting: Acting,
        *,
        poll: float = POLL_SECONDS,
        lease: float = LEASE_SECONDS,
    ) -> None:
        """poll, lease: seconds."""
        super().__init__(responses.state, poll=poll, lease=lease)
        self.responses, self.acting = responses, acting

    async def work(self, owner: str, id: str) -> None:
        """Generate a response to its end, or until it is cancelled."""
        await BackgroundRun(self, owner, id).run()

    async def forget(self, owner: str, id: str) -> None:
        """Delete what belongs to a response that was deleted."""
        await self.responses.store.try_clean(owner, id)


@dataclass
class BackgroundRun:
    """One response while it is generated in the background."""

    runner: ResponseRunner
    owner: str
    id: str

    async def run(self) -> None:
        """Generate the response. Raises DocumentNotFound if it is deleted, and StoreError."""
        model = (await self.runner.state.get(self.owner, INPUT_KIND, self.id, InputModel)).value
        await self.require_model(model.model)
        begun = await self.begin()
        if not begun.response.ended:
            try:
                interrupted(begun)
                await self.generate()
            except (DocumentNotFound, StoreError):
                raise
            except OstroError as error:
                await self.finish(failed(begun.response, error))
            except Exception as error:
                log.exception("response %s has failed", self.id)
                await self.finish(failed(begun.response, error))
        await self.runner.state.change(
            self.owner, INPUT_KIND, self.id, StoredInput, lambda old: replace(old, request=None)
        )
        await self.runner.state.delete(self.owner, JOB_KIND, self.id)

    async def require_model(self, model: str) -> None:
        """Raise ModelNotServed if this server lacks the model that another one accepted.

        After `WAIT_SECONDS` the response fails instead.
        """
        response = (await self.runner.responses.store.status(self.owner, self.id)).response
        waits = self.runner.clock() < response.created_at + WAIT_SECONDS
        if model and waits and not (response.ended or self.runner.serves(model)):
            raise ModelNotServed(model)

    async def begin(self) -> StoredResponse:
        """Count an attempt, unless the response has ended."""

        def begin(stored: StoredResponse) -> StoredResponse:
            if stored.response.ended:
                return stored
            response = replace(stored.response, status="in_progress")
            return replace(stored, response=response, attempts=stored.attempts + 1)

        return await self.runner.state.change(self.owner, KIND, self.id, StoredResponse, begin)

    async def finish(self, response: Response) -> Response:
        """Store the end of the response, unless it was cancelled."""

        def finish(old: Response) -> Response:
            return old if old.ended else response

        return await self.runner.responses.store.change(self.owner, self.id, finish)

    async def generate(self) -> None:
        """Generate the response, and stop when it is cancelled or deleted."""
        working = asyncio.ensure_future(self.attempt())
        watching = asyncio.ensure_future(self.runner.responses.watch.over(self.owner, self.id))
        try:
            await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
            await (working if working.done() else watching)
        finally:
            for task in (working, watching):
                task.cancel()
            await asyncio.gather(working, watching, return_exceptions=True)

    async def stored(self) -> Response:
        """Return the response, a part of the request that runs."""
        state, count = self.runner.state, self.runner.state.held.add_own
        return (
            await state.get(self.owner, KIND, self.id, StoredResponse, count=count)
        ).value.response

    async def attempt(self) -> None:
        """Generate the response as soon as there is capacity, also for what it refers to."""
        store, held = self.runner.responses.store, self.runner.state.held
        wait, longest = RETRY_SECONDS
        end = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                with self.runner.acting(self.owner) as caller:
                    given = await store.get_input(self.owner, self.id, held.add_own)
                    return await self.produce(given, caller)
            except (Overloaded, RateLimited):
                if time.monotonic() + wait > end:
                    raise
            await asyncio.sleep(wait)
            wait = min(longest, 2 * wait)

    async def produce(self, given: StoredInput, caller: Caller) -> None:
        """Generate the response, store its events meanwhile, and its end."""
        responses, request = self.runner.responses, given.request
        assert request is not None, "a response that has not ended has its request"
        try:
            before = await responses.before(request, len(given.items), caller)
            items = [*before, *given.items]
            generation = await responses.generate(request, items, caller)
        except DocumentNotFound as error:  # of what it continues, or of a file
            await self.finish(failed(await self.stored(), error))
            return
        response = await self.stored()
        functions = offered_functions(request.tools, items)
        run = ResponseRun(responses, request, caller, given.items, functions, response, generation)
        stored_at = time.monotonic()
        try:
            async with aclosing(run.numbered()) as events:
                async for _ in events:
                    if time.monotonic() - stored_at > CHECK_SECONDS:
                        await self.store_events(run)
                        stored_at = time.monotonic()
        except (Overloaded, RateLimited) as error:
            if run.count > 2:  # the text has begun
                run.response = failed(run.response, error)
            else:
                raise
        except OstroError as error:
            run.response = failed(run.response, error)
        await self.store_events(run)
        await self.end(run)

    async def end(self, run: ResponseRun) -> None:
        """Store the end of the response. Who reads it finds the turn in its conversation.

        The turn of a response that was cancelled or deleted meanwhile is removed again.
        """
        responses, done = self.runner.responses, run.response
        await responses.store.add_places(self.owner, self.id, done.output)
        stored: Response | None = None
        try:
            await responses.conversations.add_turn(done, run.items, run.caller)
            stored = await self.finish(done)
        finally:
            if stored is None or stored.status != done.status:
                await responses.conversations.remove_turn(done, run.items, run.caller)

    async def store_events(self, run: ResponseRun) -> None:
        """Store the events since the last call, if the client wants a stream."""
        if run.request.stream and run.log:
            await self.runner.responses.store.add_events(self.owner, self.id, run.log)
        run.log.clear()


def interrupted(begun: StoredResponse) -> None:
    """Raise Interrupted for a response that cannot be generated again after its server ended.

    Its client has read events, or it was generated again already.
    """
    if begun.attempts > (1 if begun.streamed else 2):
        raise Interrupted("the server ended while the response was generated; send it again")
