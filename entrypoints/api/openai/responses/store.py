"""The documents of responses: the response, its input, and its events if it is streamed."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from ostro.core.errors import DocumentNotFound, OstroError, RequestError, StoreError
from ostro.entrypoints.api.openai.responses.events import AnyEvent, ResponseEvent
from ostro.entrypoints.api.openai.responses.items import Item, group_of, id_of
from ostro.entrypoints.api.openai.responses.response import (
    Response,
    StoredInput,
    StoredResponse,
    StoredStatus,
)
from ostro.entrypoints.operations.documents.jobs import Job
from ostro.entrypoints.operations.documents.state import Count, State, not_found

KIND, INPUT_KIND, JOB_KIND = "response", "response_input", "response_job"
ITEM_KIND = "response_item"
PAGE = 16
"""Documents of events that are read at a time."""
EVENTS = 1000
"""Events of one document."""


class EventLog(msgspec.Struct, kw_only=True):
    """Some consecutive events of a response."""

    events: list[AnyEvent]


class ItemPlace(msgspec.Struct, kw_only=True):
    """The id of the response that has the items of a group in its input or output."""

    response: str


def event_kind(id: str) -> str:
    """Return the kind of the events of a response."""
    return f"response_event/{id}"


def groups_of(items: Sequence[Item]) -> list[str]:
    """Return the groups of stored items, without repetitions."""
    return [*dict.fromkeys(group_of(id_of(item)) for item in items)]


def counts_by_group(ids: Sequence[str]) -> Mapping[str, Counter[str]]:
    """Return how often each id occurs, by the group of its item."""
    groups: dict[str, Counter[str]] = {}
    for id in ids:
        groups.setdefault(group_of(id), Counter())[id] += 1
    return groups


class ResponseStore:
    """The stored responses of all owners. Methods raise as `State`."""

    def __init__(self, state: State) -> None:
        self.state, self.held = state, state.held

    async def add(
        self, owner: str, stored: StoredResponse, given: StoredInput, *, limited: bool = False
    ) -> None:
        """Store a response with its input. limited: as in `State.put`; nothing is stored then."""
        id = stored.response.id
        await self.state.put(owner, INPUT_KIND, id, given, limited=limited)
        await self.state.put(owner, KIND, id, stored)
        await self.add_places(owner, id, [*given.items, *stored.response.output])

    async def add_places(self, owner: str, id: str, items: Sequence[Item]) -> None:
        """Store to which response items belong, see `items`."""
        for group in groups_of(items):
            await self.state.put(owner, ITEM_KIND, group, ItemPlace(response=id))

    async def items(self, owner: str, ids: Sequence[str]) -> Mapping[str, Item]:
        """Return items of the inputs and the outputs of responses, by id, without missing ones.

        The request holds an item as often as its id occurs in `ids`, as if it was sent as often.
        """
        found = dict[str, Item]()
        for group, counts in counts_by_group(ids).items():
            with suppress(DocumentNotFound), self.held.counting() as count:
                place = (await self.state.get(owner, ITEM_KIND, group, ItemPlace)).value
                turn = await self.turn(owner, place.response, count)
                found |= {id_of(item): item for item in turn if item.id in counts}
            for id, times in counts.items():
                if id in found:
                    nbytes = len(msgspec.json.encode(found[id]))
                    for _ in range(times):
                        self.held.add(nbytes)
        return found

    async def turn(self, owner: str, id: str, count: Count | None = None) -> list[Item]:
        """Return the items of the input and the output of a response. count: as in `State.get`."""
        response = await self.state.get(owner, KIND, id, StoredResponse, count=count)
        given = await self.state.get(owner, INPUT_KIND, id, StoredInput, count=count)
        return [*given.value.items, *response.value.response.output]

    async def get(self, owner: str, id: str) -> StoredResponse:
        """Return a response, which the request holds."""
        return (await self.state.get(owner, KIND, id, StoredResponse, count=self.held.add)).value

    async def status(self, owner: str, id: str) -> StoredStatus:
        """Return the status of a response, without decoding the rest."""
        return (await self.state.get(owner, KIND, id, StoredStatus)).value

    async def get_input(self, owner: str, id: str, count: Count | None = None) -> StoredInput:
        """Return the input of a response. count: as in `State.get`; by default the request that
        runs holds it as a document that it refers to.
        """
        count = count or self.held.add
        return (await self.state.get(owner, INPUT_KIND, id, StoredInput, count=count)).value

    async def change(
        self, owner: str, id: str, function: Callable[[Response], Response]
    ) -> Response:
        """Replace a response by `function(response)`, see `State.change`."""

        def change(stored: StoredResponse) -> StoredResponse:
            response = function(stored.response)
            if response is stored.response:
                return stored
            return msgspec.structs.replace(stored, response=response)

        return (await self.state.change(owner, KIND, id, StoredResponse, change)).response

    async def cancel_job(self, owner: str, id: str) -> None:
        """Mark the job of a cancelled response, for the servers that generate or follow it."""

        def cancel(job: Job) -> Job:
            return msgspec.structs.replace(job, cancelled=True)

        with suppress(DocumentNotFound):  # it has ended
            await self.state.change(owner, JOB_KIND, id, Job, cancel)

    async def turns(self, owner: str, id: str) -> AsyncGenerator[list[Item], None]:
        """Yield the input and output items of a response and of all that it continues.

        The newest response is first. The request holds all of them. Raises RequestError for a
        response that has not ended, or that has failed.
        """
        next_id: str | None = id
        read = set[str]()
        while next_id is not None:
            if next_id in read:
                raise StoreError(f"the stored response {next_id!r:.80} continues itself")
            read.add(next_id)
            response = (await self.get(owner, next_id)).response
            if response.status not in ("completed", "incomplete"):
                raise RequestError(
                    f"the response {next_id!r:.80} is {response.status}; it cannot be continued",
                    param="previous_response_id",
                )
            items = (await self.get_input(owner, next_id)).items
            yield [*items, *response.output]
            next_id = response.previous_response_id

    async def delete(self, owner: str, id: str) -> None:
        """Delete a response with its input and its events."""
        items = await self.turn(owner, id)
        if not await self.state.delete(owner, KIND, id):
            raise not_found(id)
        for group in groups_of(items):
            await self.state.delete(owner, ITEM_KIND, group)
        await self.clean(owner, id)

    async def clean(self, owner: str, id: str) -> None:
        """Delete what belongs to a response that does not exist."""
        await self.state.delete(owner, INPUT_KIND, id)
        await self.state.delete(owner, JOB_KIND, id)
        await self.state.delete(owner, event_kind(id))

    async def try_clean(self, owner: str, id: str) -> None:
        """Do as `clean` after an error; the documents expire if this fails."""
        with suppress(OstroError):
            await self.clean(owner, id)

    async def add_events(self, owner: str, id: str, events: Sequence[ResponseEvent]) -> None:
        """Store consecutive events."""
        for start in range(0, len(events), EVENTS):
            part = events[start : start + EVENTS]
            name = f"{part[0].sequence_number:032x}"
            await self.state.put(owner, event_kind(id), name, EventLog(events=[*part]))  # type: ignore[list-item]

    async def read_events(
        self, owner: str, id: str, cursor: str | None
    ) -> AsyncGenerator[tuple[str, list[AnyEvent]], None]:
        """Yield the stored events behind a cursor, each time with the next cursor."""
        more = True
        while more:
            page = await self.state.list(
                owner, event_kind(id), EventLog, after=cursor, limit=PAGE, descending=False
            )
            for each in page.items:
                cursor = each.document.id
                yield cursor, each.value.events
            more = page.has_more
