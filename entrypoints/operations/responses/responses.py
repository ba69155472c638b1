"""Responses: generated from items and from what is stored, and stored themselves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field

from msgspec.structs import replace

from ostro.core.errors import (
    ContextLengthExceeded,
    DocumentNotFound,
    OstroError,
    RequestError,
    StoreError,
    Unsupported,
)
from ostro.core.messages.text_requests import ChatRequest
from ostro.entrypoints.operations.caller import ANYONE, Caller
from ostro.entrypoints.operations.conversations import Conversations
from ostro.entrypoints.operations.jobs import Job
from ostro.entrypoints.operations.responses.builder import ResponseBuilder
from ostro.entrypoints.operations.responses.chat import without_orphans
from ostro.entrypoints.operations.responses.events import (
    ResponseError,
    ResponseEvent,
    end_of,
)
from ostro.entrypoints.operations.responses.items import (
    Item,
    ItemListRequest,
    ItemPage,
    ItemReference,
    MessageItem,
    after_item,
    stored_items,
)
from ostro.entrypoints.operations.responses.request import (
    InputTokensRequest,
    ResponseRequest,
    chat_request,
    with_own_field,
)
from ostro.entrypoints.operations.responses.response import (
    Response,
    StoredInput,
    StoredResponse,
    failed,
    new_response,
)
from ostro.entrypoints.operations.responses.store import JOB_KIND, ResponseStore
from ostro.entrypoints.operations.state import State
from ostro.entrypoints.operations.text import Generation
from ostro.entrypoints.operations.text_operations import TextOperations

log = logging.getLogger(__name__)
POLL_SECONDS = 0.1
"""Interval at which the events of a running response are read."""


class Responses:
    """The responses of callers. Methods raise as `State`; a caller finds its own responses only."""

    def __init__(
        self, state: State, operations: TextOperations, notify: Callable[[], None] = lambda: None
    ) -> None:
        """notify: called after a response in the background is created or cancelled."""
        self.state, self.operations, self.notify = state, operations, notify
        self.store = ResponseStore(state)
        self.conversations = Conversations(state)

    async def open(self, request: ResponseRequest, caller: Caller = ANYONE) -> ResponseRun:
        """Begin the generation of a response.

        Raises as `Operations.chat`, and RequestError for what cannot be continued.
        """
        store = self.stores(request)
        if store:
            await self.state.room(caller.name)  # a store that does not work is known now
        items = await self.read_items(request, caller)
        before = await self.before(request, caller)
        generation = await self.generate(request, [*before, *items], caller)
        response = new_response(request, generation.model, store)
        return ResponseRun(self, request, caller, items, response, generation)

    async def create(self, request: ResponseRequest, caller: Caller = ANYONE) -> Response:
        """Generate a response, or store it to be generated in the background.

        Raises as `open`, and what ends the generation.
        """
        if request.background:
            return await self.enqueue(request, caller)
        run = await self.open(request, caller)
        async with aclosing(run.generated()) as events:
            async for _ in events:
                pass
        await run.save()
        return run.response

    async def stream(
        self, request: ResponseRequest, caller: Caller = ANYONE
    ) -> AsyncGenerator[ResponseEvent, None]:
        """Yield the events of a response. Raises as `open` before the first one."""
        if request.background:
            response = await self.enqueue(request, caller)
            async with aclosing(self.replay(response.id, caller=caller)) as events:
                async for event in events:
                    yield event
            return
        run = await self.open(request, caller)
        async with aclosing(run.events()) as events:
            async for event in events:
                yield event

    async def enqueue(self, request: ResponseRequest, caller: Caller) -> Response:
        """Store a response for the runner. Raises as `open`, for what is known before."""
        self.stores(request)
        await self.state.room(caller.name)
        items = await self.read_items(request, caller)
        before = await self.before(request, caller)
        wanted = self.chat_request(request, [*before, *items])
        admitted = await self.operations.service.admit(wanted, "text", caller)
        response = new_response(request, admitted.name, store=True)
        stored = StoredResponse(response=response, streamed=bool(request.stream))
        await self.store.add(
            caller.name, stored, StoredInput(items=items, request=request, model=admitted.model)
        )
        await self.state.put(caller.name, JOB_KIND, response.id, Job())
        self.notify()
        return response

    def stores(self, request: ResponseRequest) -> bool:
        """Whether a response is stored: by default if the server has a store.

        Raises Unsupported if the request needs a store that the server lacks.
        """
        needs = (request.background, request.previous_response_id, request.conversation)
        if request.store or any(needs):
            self.state.require()
        return self.state.enabled if request.store is None else request.store

    async def before(self, request: InputTokensRequest, caller: Caller) -> list[Item]:
        """Return the items that a request continues. Errors name the field of the request."""
        if request.previous_response_id is not None:
            with naming("previous_response_id"):
                return await self.store.history(caller.name, request.previous_response_id)
        if request.conversation_id is not None:
            with naming("conversation"):
                return await self.conversations.all_items(request.conversation_id, caller)
        return []

    async def read_items(self, request: InputTokensRequest, caller: Caller) -> list[Item]:
        """Return the items of a request's input, complete and with ids.

        Raises DocumentNotFound for a reference to an item of no response of the caller.
        """
        given = request.input or []
        if isinstance(given, str):
            given = [MessageItem(role="user", content=given)]
        items = [
            await self.find(item.id, f"input[{i}].id", caller)
            if isinstance(item, ItemReference)
            else item
            for i, item in enumerate(given)
        ]
        return stored_items(items, "input")

    async def find(self, id: str, param: str, caller: Caller) -> Item:
        """Return an item of the input or the output of a stored response."""
        with naming(param):
            return await self.store.item(caller.name, id)

    async def generate(
        self, request: ResponseRequest, items: Sequence[Item], caller: Caller
    ) -> Generation:
        """Begin to generate. With `truncation: auto`, drop as few of the first items as needed."""
        try:
            return await self.chat(request, items, caller)
        except ContextLengthExceeded as error:
            too_long = error
        if request.truncation != "auto":
            raise too_long
        least, most, found = 1, len(items) - 1, None
        while least <= most:
            dropped = (least + most) // 2
            try:
                shorter = await self.chat(request, without_orphans(items[dropped:]), caller)
            except ContextLengthExceeded:
                least = dropped + 1
                continue
            if found is not None:
                await found.aclose()
            found, most = shorter, dropped - 1
        if found is None:
            raise too_long
        return found

    async def chat(
        self, request: ResponseRequest, items: Sequence[Item], caller: Caller
    ) -> Generation:
        wanted = self.chat_request(request, items)
        try:
            return await self.operations.chat(wanted, caller)
        except (RequestError, Unsupported, DocumentNotFound) as error:
            raise with_own_field(error) from None

    def chat_request(self, request: InputTokensRequest, items: Sequence[Item]) -> ChatRequest:
        """Return the request of the operation. Raises RequestError and Unsupported."""
        try:
            return chat_request(request, items)
        except (RequestError, Unsupported, DocumentNotFound) as error:
            raise with_own_field(error) from None

    async def get(self, id: str, caller: Caller = ANYONE) -> Response:
        """Return a response."""
        return (await self.store.get(caller.name, id)).response

    async def replay(
        self, id: str, after: int = -1, caller: Caller = ANYONE
    ) -> AsyncGenerator[ResponseEvent, None]:
        """Yield the events of a response whose number is above `after`, until it has ended.

        Raises RequestError before the first one for a response that was not streamed, and
        DocumentNotFound, also if the response is deleted meanwhile.
        """
        owner, cursor, number = caller.name, None, -1
        while True:
            stored = await self.store.get(owner, id)
            if not stored.streamed:
                raise RequestError("the response was created without stream", param="stream")
            async with aclosing(self.store.read_events(owner, id, cursor)) as pages:
                async for cursor_after, events in pages:
                    cursor = cursor_after
                    for event in events:
                        number = event.sequence_number
                        if number > after:
                            yield event
            if stored.response.ended:
                break
            await asyncio.sleep(POLL_SECONDS)
        if number + 1 > after:
            yield replace(end_of(stored.response), sequence_number=number + 1)

    async def delete(self, id: str, caller: Caller = ANYONE) -> None:
        """Delete a response with its input and its events. Its generation stops."""
        await self.store.delete(caller.name, id)
        self.notify()

    async def cancel(self, id: str, caller: Caller = ANYONE) -> Response:
        """Cancel a response in the background, on whichever server it runs.

        Raises RequestError for one that has ended otherwise, or that its client waited for.
        """

        def cancel(response: Response) -> Response:
            if not response.background:
                raise RequestError("only a response in the background can be cancelled")
            if response.status == "cancelled":
                return response
            if response.ended:
                raise RequestError(f"the response is {response.status}")
            return replace(response, status="cancelled")

        cancelled = await self.store.change(caller.name, id, cancel)
        self.notify()
        return cancelled

    async def input_items(
        self, id: str, request: ItemListRequest, caller: Caller = ANYONE
    ) -> ItemPage:
        """Return a page of the input of a response. Raises RequestError for an invalid cursor."""
        await self.store.get(caller.name, id)
        items = (await self.store.get_input(caller.name, id)).items
        if request.order == "desc":
            items = items[::-1]
        rest = after_item(items, request.after)
        return ItemPage([*rest[: request.limit]], len(rest) > request.limit)

    async def count(self, request: InputTokensRequest, caller: Caller = ANYONE) -> int:
        """Return the number of tokens of an input, with what it continues."""
        items = [*await self.before(request, caller), *await self.read_items(request, caller)]
        wanted = self.chat_request(request, items)
        try:
            return await self.operations.count(wanted, caller)
        except (RequestError, Unsupported, DocumentNotFound) as error:
            raise with_own_field(error) from None


@contextmanager
def naming(param: str) -> Iterator[None]:
    """Name a field of the request in a DocumentNotFound of the block."""
    try:
        yield
    except DocumentNotFound as error:
        raise DocumentNotFound(f"{param}: {error}", param=param) from None


@dataclass
class ResponseRun:
    """A response that is generated. `log` has its newest events, `count` is that of all."""

    responses: Responses
    request: ResponseRequest
    caller: Caller
    items: list[Item]
    response: Response
    generation: Generation
    log: list[ResponseEvent] = field(default_factory=list)
    count: int = 0
    builder: ResponseBuilder = field(init=False)

    def __post_init__(self) -> None:
        self.builder = ResponseBuilder(
            self.response, self.generation.token_bytes, logprobs=self.request.wants_logprobs
        )

    async def generated(self) -> AsyncGenerator[ResponseEvent, None]:
        """Yield the events of the generation; `response` is then the result."""
        builder = self.builder
        try:
            for event in builder.start():
                yield event
            async for each in self.generation:
                for event in builder.add(each):
                    yield event
            for event in builder.end(self.generation):
                yield event
        finally:
            await self.generation.aclose()
            self.response = builder.response

    async def numbered(self) -> AsyncGenerator[ResponseEvent, None]:
        """Yield the events of the generation with their numbers, and collect them in `log`."""
        async with aclosing(self.generated()) as events:
            async for event in events:
                self.add(event)
                yield event

    def add(self, event: ResponseEvent) -> None:
        """Number an event and collect it."""
        event.sequence_number = self.count
        self.count += 1
        self.log.append(event)

    async def events(self) -> AsyncGenerator[ResponseEvent, None]:
        """Yield all events; errors of the generation and the store become events.

        A response whose client disconnects is stored as cancelled, with its output so far.
        """
        try:
            async with aclosing(self.numbered()) as events:
                async for event in events:
                    yield event
        except OstroError as error:
            self.response = failed(self.response, error)
        except (GeneratorExit, asyncio.CancelledError):
            await self.cancel()
            raise
        try:
            await self.save(streamed=True)
            yield replace(end_of(self.response), sequence_number=self.count)
        except StoreError as error:
            yield ResponseError(message=str(error), code=error.code, sequence_number=self.count)

    async def cancel(self) -> None:
        """End the response early and store it. Errors of the store are left to the log."""
        for event in self.builder.cancel(self.generation):
            self.add(event)
        self.response = self.builder.response
        try:
            await self.save(streamed=True)
        except StoreError as error:
            log.warning("the cancelled response %s is not stored: %s", self.response.id, error)

    async def save(self, *, streamed: bool = False) -> None:
        """Store the response if the request wants it, and add its items to its conversation."""
        if not self.response.store:
            return
        owner, store, id = self.caller.name, self.responses.store, self.response.id
        try:
            if streamed:
                await store.add_events(owner, id, self.log)
            stored = StoredResponse(response=self.response, streamed=streamed)
            await store.add(owner, stored, StoredInput(items=self.items))
        except StoreError:
            await store.try_clean(owner, id)
            raise
        await self.responses.conversations.add_turn(self.response, self.items, self.caller)
