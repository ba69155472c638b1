"""Responses: generated from items and from what is stored, and stored themselves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
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
from ostro.core.store import DocumentStore
from ostro.entrypoints.api.openai.responses.builder import ResponseBuilder
from ostro.entrypoints.api.openai.responses.chat import without_orphans
from ostro.entrypoints.api.openai.responses.conversations import Conversations
from ostro.entrypoints.api.openai.responses.events import (
    ResponseError,
    ResponseEvent,
    end_of,
)
from ostro.entrypoints.api.openai.responses.items import (
    Item,
    ItemListRequest,
    ItemPage,
    ItemReference,
    MessageItem,
    after_item,
    stored_items,
)
from ostro.entrypoints.api.openai.responses.request import (
    MAX_ITEMS,
    InputTokensRequest,
    ResponseRequest,
    chat_request,
    with_own_field,
)
from ostro.entrypoints.api.openai.responses.response import (
    Response,
    StoredInput,
    StoredResponse,
    failed,
    new_response,
)
from ostro.entrypoints.api.openai.responses.store import JOB_KIND, ResponseStore
from ostro.entrypoints.api.openai.responses.tools import (
    Function,
    offered_functions,
    with_own_place,
)
from ostro.entrypoints.api.openai.responses.watch import ResponseWatch
from ostro.entrypoints.operations.access.caller import ANYONE, Caller
from ostro.entrypoints.operations.access.quotas import RateLimited, RequestTooLarge
from ostro.entrypoints.operations.documents.jobs import Job
from ostro.entrypoints.operations.documents.state import State, not_found
from ostro.entrypoints.operations.tasks.text import Generation
from ostro.entrypoints.operations.tasks.text_operations import TextOperations
from ostro.entrypoints.operations.tasks.truncation import oldest_to_drop

log = logging.getLogger(__name__)
MAX_BACKGROUND = 1000
"""Limit on the responses in the background of one caller that have not ended."""
RETRY_SECONDS = 1.0
"""When to repeat a request that this limit has refused, in seconds."""


class Responses:
    """The responses of callers. Methods raise as `State`; a caller finds its own responses only."""

    def __init__(
        self, state: State, operations: TextOperations, notify: Callable[[], None] = lambda: None
    ) -> None:
        """notify: called after a response in the background is created or cancelled."""
        self.state, self.operations, self.notify = state, operations, notify
        self.store, self.watch = ResponseStore(state), ResponseWatch(state)
        self.conversations = Conversations(state)

    async def open(self, request: ResponseRequest, caller: Caller = ANYONE) -> ResponseRun:
        """Begin the generation of a response.

        Raises as `Operations.chat`, and RequestError for what cannot be continued.
        """
        store = self.stores(request)
        items = await self.read_items(request, caller)
        if store:  # a store that does not work is known now
            await self.state.require_room_for(caller.name, 2, items)
        before = await self.before(request, len(items), caller)
        whole = [*before, *items]
        generation = await self.generate(request, whole, caller)
        response = new_response(request, generation.model, store)
        functions = offered_functions(request.tools, whole)
        return ResponseRun(self, request, caller, items, functions, response, generation)

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
        await self.require_turn(caller)
        items = await self.read_items(request, caller)
        before = await self.before(request, len(items), caller)
        wanted = await self.chat_request(request, [*before, *items])
        admitted = await self.operations.service.admit(wanted, "text", caller)
        response = new_response(request, admitted.name, store=True)
        stored = StoredResponse(response=response, streamed=bool(request.stream))
        options = replace(request, input=None)  # `items` are the input
        given = StoredInput(items=items, request=options, model=admitted.model)
        await self.store.add(caller.name, stored, given, limited=True)
        await self.state.put(caller.name, JOB_KIND, response.id, Job())
        self.notify()
        return response

    async def require_turn(self, caller: Caller) -> None:
        """Raise RateLimited for a caller with `MAX_BACKGROUND` responses that have not ended."""

        def count(store: DocumentStore) -> int:
            return len(store.list(caller.name, JOB_KIND, limit=MAX_BACKGROUND))

        if await self.state.call(count) >= MAX_BACKGROUND:
            raise RateLimited(
                f"this API key has {MAX_BACKGROUND} responses in the background that have not "
                "ended; wait for some, or cancel them",
                RETRY_SECONDS,
            )

    def stores(self, request: ResponseRequest) -> bool:
        """Whether a response is stored: by default if the server has a store.

        Raises Unsupported if the request needs a store that the server lacks.
        """
        needs = (request.background, request.previous_response_id, request.conversation)
        if request.store or any(needs):
            self.state.require()
        return self.state.enabled if request.store is None else request.store

    async def before(self, request: InputTokensRequest, own: int, caller: Caller) -> list[Item]:
        """Return the items that a request continues. Errors name the field of the request.

        own: the number of items of the request itself. With `truncation: auto`, the oldest items
        beyond a limit are left out. Raises RequestError for more than `MAX_ITEMS` in all, and as
        `HeldDocuments.add`.
        """
        if request.previous_response_id is not None:
            field = "previous_response_id"
            turns = self.store.turns(caller.name, request.previous_response_id)
        elif request.conversation_id is not None:
            field = "conversation"
            turns = self.conversations.parts(request.conversation_id, caller)
        else:
            return []
        with naming(field):
            async with aclosing(turns):
                most = max(1, MAX_ITEMS - 1 - own)  # instructions are one more message
                return await newest(turns, most, request.truncation == "auto", field)

    async def read_items(self, request: InputTokensRequest, caller: Caller) -> list[Item]:
        """Return the items of a request's input, complete and with ids.

        Raises DocumentNotFound for a reference to an item of no response of the caller, and as
        `HeldDocuments.add`.
        """
        given = request.input or []
        if isinstance(given, str):
            given = [MessageItem(role="user", content=given)]
        ids = [item.id for item in given if isinstance(item, ItemReference)]
        stored = await self.store.items(caller.name, ids)
        items = list[Item]()
        for i, item in enumerate(given):
            if isinstance(item, ItemReference):
                if item.id not in stored:
                    with naming(f"input[{i}].id"):
                        raise not_found(item.id)
                item = stored[item.id]
            items.append(item)
        return stored_items(items, "input")

    async def generate(
        self, request: ResponseRequest, items: Sequence[Item], caller: Caller
    ) -> Generation:
        """Begin to generate. With `truncation: auto`, drop as few of the oldest items as needed."""
        try:
            return await self.chat(request, items, caller)
        except ContextLengthExceeded as error:
            if request.truncation != "auto":
                raise
            dropped = await oldest_to_drop(
                lambda dropped: self.count_items(request, items[dropped:], caller),
                len(items) - 1,
                error,
                request.max_output_tokens,
            )
        return await self.chat(request, without_orphans(items[dropped:]), caller)

    async def chat(
        self, request: ResponseRequest, items: Sequence[Item], caller: Caller
    ) -> Generation:
        wanted = await self.chat_request(request, items)
        try:
            return await self.operations.chat(wanted, caller)
        except (RequestError, Unsupported, DocumentNotFound) as error:
            functions = offered_functions(request.tools, items)
            raise with_own_field(with_own_place(error, functions)) from None

    async def count_items(
        self, request: ResponseRequest, items: Sequence[Item], caller: Caller
    ) -> int:
        """Count the tokens of the prompt of items, the first of which may be results of calls."""
        wanted = await self.chat_request(request, without_orphans(items))
        return await self.operations.count(wanted, caller)

    async def chat_request(self, request: InputTokensRequest, items: Sequence[Item]) -> ChatRequest:
        """Return the request of the operation. Raises RequestError and Unsupported."""
        try:
            return await chat_request(request, items)
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
        if not (await self.store.status(owner, id)).streamed:
            raise RequestError("the response was created without stream", param="stream")
        progress = None
        while True:
            progress = await self.watch.changed(owner, id, progress)
            async with aclosing(self.store.read_events(owner, id, cursor)) as pages:
                async for cursor_after, events in pages:
                    cursor = cursor_after
                    for event in events:
                        number = event.sequence_number
                        if number > after:
                            yield event
            if progress.over and (await self.store.status(owner, id)).response.ended:
                break
        if number + 1 > after:
            response = (await self.store.get(owner, id)).response
            yield replace(end_of(response), sequence_number=number + 1)

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
        await self.store.cancel_job(caller.name, id)
        self.notify()
        return cancelled

    async def input_items(
        self, id: str, request: ItemListRequest, caller: Caller = ANYONE
    ) -> ItemPage:
        """Return a page of the input of a response. Raises RequestError for an invalid cursor."""
        await self.store.status(caller.name, id)
        items = (await self.store.get_input(caller.name, id)).items
        if request.order == "desc":
            items = items[::-1]
        rest = after_item(items, request.after)
        return ItemPage([*rest[: request.limit]], len(rest) > request.limit)

    async def count(self, request: InputTokensRequest, caller: Caller = ANYONE) -> int:
        """Return the number of tokens of an input, with what it continues."""
        items = await self.read_items(request, caller)
        items = [*await self.before(request, len(items), caller), *items]
        wanted = await self.chat_request(request, items)
        try:
            return await self.operations.count(wanted, caller)
        except (RequestError, Unsupported, DocumentNotFound) as error:
            functions = offered_functions(request.tools, items)
            raise with_own_field(with_own_place(error, functions)) from None


@contextmanager
def naming(param: str) -> Iterator[None]:
    """Name a field of the request in a DocumentNotFound of the block."""
    try:
        yield
    except DocumentNotFound as error:
        raise DocumentNotFound(f"{param}: {error}", param=param) from None


async def newest(
    parts: AsyncIterator[list[Item]], most: int, drops: bool, field: str
) -> list[Item]:
    """Return the items of a history, the oldest first. Its parts come newest first.

    most: limit on the items. drops: leave out the oldest items beyond a limit instead of raising
    RequestError or RequestTooLarge. field: names the history in errors.
    """
    kept, count = list[list[Item]](), 0
    try:
        async for part in parts:
            kept.append(part)
            count += len(part)
            if count > most:
                raise RequestTooLarge(
                    f"{field}: more than {MAX_ITEMS} items in all; truncation: auto drops the "
                    "oldest ones"
                )
    except RequestTooLarge:
        if not (drops and kept):
            raise
        items = [item for part in reversed(kept) for item in part]
        return without_orphans(items[-most:])
    return [item for part in reversed(kept) for item in part]


@dataclass
class ResponseRun:
    """A response that is generated. `log` has its newest events, `count` is that of all.

    items: the input, without what it continues. functions: those that the model can call.
    """

    responses: Responses
    request: ResponseRequest
    caller: Caller
    items: list[Item]
    functions: Sequence[Function]
    response: Response
    generation: Generation
    log: list[ResponseEvent] = field(default_factory=list)
    count: int = 0
    builder: ResponseBuilder = field(init=False)

    def __post_init__(self) -> None:
        self.builder = ResponseBuilder(
            self.response,
            self.generation.token_bytes,
            self.functions,
            logprobs=self.request.wants_logprobs,
            carries_reasoning=self.request.wants_encrypted,
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
        except (RequestError, Unsupported) as error:
            raise with_own_field(with_own_place(error, self.functions)) from None
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
