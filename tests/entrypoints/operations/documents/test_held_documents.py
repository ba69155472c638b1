"""The bytes of stored documents that requests refer to: limits, and what they prevent."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from echo.generation import ScriptedGeneration

from ostro.core.errors import Overloaded, StoreError
from ostro.core.plugins.manager import PluginManager
from ostro.core.store import new_id
from ostro.entrypoints.api.openai import chat_store
from ostro.entrypoints.api.openai.chat_store import ChatListRequest, StoredChat, StoredChats
from ostro.entrypoints.api.openai.responses import conversations
from ostro.entrypoints.api.openai.responses import responses as responses_module
from ostro.entrypoints.api.openai.responses.conversations import ConversationRequest, ItemsRequest
from ostro.entrypoints.api.openai.responses.items import (
    ItemListRequest,
    ItemReference,
    MessageItem,
)
from ostro.entrypoints.api.openai.responses.request import ResponseRequest
from ostro.entrypoints.api.openai.responses.response import Response
from ostro.entrypoints.api.openai.responses.responses import Responses
from ostro.entrypoints.operations.access.admission import claim
from ostro.entrypoints.operations.access.caller import ANYONE, Caller
from ostro.entrypoints.operations.access.keys import Key
from ostro.entrypoints.operations.access.quotas import RateLimited, RequestTooLarge
from ostro.entrypoints.operations.documents.files import MAX_FILE, FileRequest, Files
from ostro.entrypoints.operations.documents.held_documents import HeldDocuments
from ostro.entrypoints.operations.documents.state import State, open_state
from ostro.entrypoints.operations.documents.store_limits import StoreLimitReached

KB = 1 << 10
ANN = Caller(name="ann")


def run(
    plugins: PluginManager, work: Callable[[Responses], Awaitable[Any]], **limits: int
) -> list[Any]:
    """Run work on responses over a store in memory; return the chats that were generated."""
    chats = list[Any]()

    async def chat(request: Any, caller: Caller) -> Any:
        chats.append(request)
        return ScriptedGeneration()

    async def admit(*_: Any) -> Any:
        return SimpleNamespace(name="m", model="m")

    async def main() -> None:
        state = open_state("memory", None, plugins)
        state.held = HeldDocuments(**limits)
        operations: Any = SimpleNamespace(chat=chat, service=SimpleNamespace(admit=admit))
        try:
            await work(Responses(state, operations))
        finally:
            await state.close()

    asyncio.run(main())
    return chats


def message(size: int, text: str = "x") -> MessageItem:
    return MessageItem(role="user", content=text * size)


async def answered(responses: Responses, *items: MessageItem, **fields: Any) -> Response:
    """Return a stored response to items."""
    with claim(ANN):
        return await responses.create(ResponseRequest(input=[*items], **fields), ANN)


async def input_ids(responses: Responses, response: Response) -> list[str]:
    page = await responses.input_items(response.id, ItemListRequest(), ANN)
    return [str(item.id) for item in page.items]


async def stored_bytes(state: State) -> int:
    return sum(usage.nbytes for usage in await state.usage())


def held(limits: HeldDocuments, caller: Caller, *sizes: int) -> None:
    """Hold documents in a request of a caller."""
    with claim(caller):
        for size in sizes:
            limits.add(size)


def test_documents_count_until_their_request_ends() -> None:
    limits = HeldDocuments(request=100, caller=150, total=200)
    bob, eve = Caller(name="bob"), Caller(name="eve")
    for _ in range(3):
        held(limits, ANN, 60, 40)
        assert limits.nbytes == 0 and not limits.callers
    with pytest.raises(RequestTooLarge, match="exceed 100 bytes") as large:
        held(limits, ANN, 60, 41)
    assert large.value.status == 413
    held(limits, ANN, 120)  # one document may be of any size
    with claim(ANN):
        limits.add(100)
        with pytest.raises(RateLimited, match="hold 100 bytes") as limited:
            held(limits, ANN, 51)
        assert (limited.value.status, limited.value.retry_after) == (429, 1.0)
        with claim(bob):
            limits.add(80)
            with pytest.raises(Overloaded, match="hold 180 bytes"):
                held(limits, eve, 21)
            held(limits, eve, 20)
    assert limits.nbytes == 0 and not limits.callers
    limits.add(1 << 40)  # outside of a request


def test_the_request_itself_is_none_of_what_it_refers_to() -> None:
    limits = HeldDocuments(request=100, caller=150, total=200)
    for _ in range(2):
        with claim(ANN):
            limits.add_own(60)
            limits.add(60)
            limits.add(30)
            assert limits.nbytes == limits.callers["ann"] == 150
            with pytest.raises(RateLimited):
                limits.add_own(1)
            with claim(Caller(name="bob")), pytest.raises(Overloaded):
                limits.add_own(51)
        assert limits.nbytes == 0 and not limits.callers
    limits.add_own(1 << 40)  # outside of a request


def test_documents_of_a_block_count_until_its_end() -> None:
    limits = HeldDocuments(request=100)
    with claim(ANN):
        limits.add(30)
        for _ in range(5):
            with limits.counting() as count:
                count(60)
                with pytest.raises(RequestTooLarge):
                    count(20)
            assert limits.nbytes == 30
    assert limits.nbytes == 0


@pytest.mark.parametrize("background", [False, True])
def test_an_item_counts_as_often_as_it_is_referred_to(
    plugins: PluginManager, background: bool
) -> None:
    """9,000 references to an item of 1 MB took gigabytes, and hundreds as much of the disk."""

    async def work(responses: Responses) -> None:
        before = await answered(responses, message(100 * KB))
        [id] = await input_ids(responses, before)
        stored = await stored_bytes(responses.state)

        async def refer(times: int) -> None:
            items = [ItemReference(id=id) for _ in range(times)]
            with claim(ANN):
                request = ResponseRequest(input=items, background=background)
                await responses.create(request, ANN)

        tracemalloc.start()
        for times in (10, 9_000):
            with pytest.raises(RequestTooLarge):
                await refer(times)
        assert tracemalloc.get_traced_memory()[1] < 8_000 * KB
        tracemalloc.stop()
        assert await stored_bytes(responses.state) == stored
        await refer(9)
        assert await stored_bytes(responses.state) > stored + 900 * KB
        responses.state.held.request = 10_000 * KB  # without the limit
        await refer(90)
        assert await stored_bytes(responses.state) > stored + 9_000 * KB

    run(plugins, work, request=1_000 * KB)


def test_a_referred_item_does_not_count_what_is_stored_beside_it(plugins: PluginManager) -> None:
    async def work(responses: Responses) -> None:
        ids = []
        for _ in range(4):
            response = await answered(responses, message(1), message(300 * KB, "y"))
            ids.append((await input_ids(responses, response))[-1])
        with claim(ANN) as own:
            items = await responses.read_items(
                ResponseRequest(input=[ItemReference(id=id) for id in ids]), ANN
            )
            assert [item.content[0].text for item in items] == ["x"] * 4  # type: ignore[union-attr]
            assert 0 < own.document_bytes < KB
        assert responses.state.held.nbytes == 0

    run(plugins, work, request=500 * KB)


@pytest.mark.parametrize("source", ["previous_response_id", "conversation"])
def test_a_history_is_read_up_to_a_limit(
    plugins: PluginManager, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """With `truncation: auto` the newest items are read, else the request is refused."""
    monkeypatch.setattr(conversations, "PAGE_BYTES", 150 * KB)

    async def work(responses: Responses) -> None:
        fields = await history(responses, source, 8)
        responses.state.held.request = 500 * KB
        with pytest.raises(RequestTooLarge):
            await answered(responses, message(1), **fields)
        with pytest.raises(RequestTooLarge), claim(ANN):
            await responses.count(ResponseRequest(input="x", **fields), ANN)
        assert responses.state.held.nbytes == 0
        await answered(responses, message(1), truncation="auto", **fields)

    chats = run(plugins, work)
    assert len(chats) == 9
    assert user_texts(chats[-1]) == ["4", "5", "6", "7", "x"]


@pytest.mark.parametrize("source", ["previous_response_id", "conversation"])
def test_a_history_has_a_limited_number_of_items(
    plugins: PluginManager, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """Each answer adds five items, of which two messages are the user's and the model's."""
    monkeypatch.setattr(responses_module, "MAX_ITEMS", 12)

    async def work(responses: Responses) -> None:
        fields = await history(responses, source, 3)
        with pytest.raises(RequestTooLarge, match=f"{source}: more than 12 items"):
            await answered(responses, message(1), **fields)
        await answered(responses, message(1), truncation="auto", **fields)

    chats = run(plugins, work)
    assert len(chats) == 4
    assert user_texts(chats[-1]) == ["1", "2", "x"]


async def history(responses: Responses, source: str, turns: int) -> dict[str, Any]:
    """Store turns whose inputs are 100 KB of a digit; return the fields that continue them."""
    fields: dict[str, Any] = {}
    if source == "conversation":
        created = await responses.conversations.create(ConversationRequest(), ANN)
        fields = {"conversation": created.id}
    for i in range(turns):
        truncation = "auto" if i else None
        response = await answered(
            responses, message(100 * KB, str(i)), truncation=truncation, **fields
        )
        if source == "previous_response_id":
            fields = {source: response.id}
    return fields


def user_texts(chat: Any) -> list[str]:
    """Return the first characters of the messages of the user."""
    return [str(one.content)[:1] for one in chat.messages if one.role == "user"]


def test_a_response_that_continues_itself_is_an_error_of_the_store(plugins: PluginManager) -> None:
    async def work(responses: Responses) -> None:
        response = await answered(responses, message(1))

        def damage(old: Response) -> Response:
            return msgspec.structs.replace(old, previous_response_id=old.id)

        await responses.store.change("ann", response.id, damage)
        with pytest.raises(StoreError, match="continues itself"):
            await answered(responses, message(1), previous_response_id=response.id)

    run(plugins, work)


def test_a_page_of_items_has_a_limited_size(
    plugins: PluginManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversations, "PAGE_BYTES", 250 * KB)

    async def work(responses: Responses) -> None:
        created = await responses.conversations.create(ConversationRequest(), ANN)
        sizes = [100 * KB] * 5 + [400 * KB] + [1] * 3
        await responses.conversations.add(
            created.id, ItemsRequest(items=[message(size) for size in sizes]), ANN
        )
        for order in ("asc", "desc"):
            pages, after, more = list[int](), None, True
            read = list[str]()
            while more:
                request = ItemListRequest(limit=100, after=after, order=order)  # type: ignore[arg-type]
                page = await responses.conversations.items(created.id, request, ANN)
                pages.append(len(page.items))
                read += [str(item.id) for item in page.items]
                after, more = read[-1], page.has_more
            assert len({*read}) == 9
            assert pages == ([2, 2, 1, 1, 3] if order == "asc" else [3, 1, 2, 2, 1])

    run(plugins, work)


def test_a_list_of_completions_decodes_no_messages(
    plugins: PluginManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of one completion read a hundred of them, with images of megabytes."""
    monkeypatch.setattr(chat_store, "PAGE_BYTES", 250 * KB)

    async def main() -> None:
        state = open_state("memory", None, plugins)
        chats, reads = StoredChats(state), list[int]()
        for i in range(6):
            await chats.add(
                StoredChat(
                    id=new_id("chatcmpl-"),
                    model="m" if i % 2 else "n",
                    metadata={},
                    messages=[{"role": "user", "content": "x" * 100 * KB}],
                    completion=msgspec.Raw(b'{"n":%d}' % i),
                ),
                ANN,
            )
        call = state.call

        async def counted(function: Any) -> Any:
            result = await call(function)
            reads.append(len(result[0]))
            return result

        monkeypatch.setattr(state, "call", counted)
        page = await chats.list(ChatListRequest(limit=1), ANN)
        assert [bytes(chat.completion) for chat in page.chats] == [b'{"n":0}'] and page.has_more
        assert sum(reads) == 2
        page = await chats.list(ChatListRequest(limit=3, model="m"), ANN)
        numbers = [bytes(chat.completion) for chat in page.chats]
        assert numbers == [b'{"n":1}', b'{"n":3}', b'{"n":5}'] and not page.has_more
        assert not any(hasattr(chat, "messages") for chat in page.chats)
        await state.close()

    asyncio.run(main())


def test_what_a_request_refers_to_counts_towards_what_its_key_may_store(
    plugins: PluginManager,
) -> None:
    async def work(responses: Responses) -> None:
        state = responses.state
        response = await answered(responses, message(100 * KB))
        [id] = await input_ids(responses, response)
        key = Key(name="ann", sha256="0" * 64, stored_bytes=1_000 * KB)
        state.limits.key_of = lambda name: key if name == "ann" else None
        for background in (True, False):
            request = ResponseRequest(
                input=[ItemReference(id=id) for _ in range(20)], background=background
            )
            stored = await stored_bytes(state)
            with pytest.raises(StoreLimitReached):
                await responses.create(request, ANN)
            assert await stored_bytes(state) == stored

    assert len(run(plugins, work)) == 1


def test_a_caller_has_a_limited_number_of_responses_in_the_background(
    plugins: PluginManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses_module, "MAX_BACKGROUND", 3)
    request = ResponseRequest(input="x", background=True)

    async def work(responses: Responses) -> None:
        made = [await responses.create(request, ANN) for _ in range(3)]
        with pytest.raises(RateLimited, match="3 responses in the background"):
            await responses.create(request, ANN)
        await responses.create(request, ANYONE)
        await responses.delete(made[0].id, ANN)
        await responses.create(request, ANN)

    run(plugins, work)


def test_the_files_that_requests_refer_to_count(plugins: PluginManager) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"x" * 100 * KB

    async def work(responses: Responses) -> None:
        files = Files(responses.state)
        file = await files.create(FileRequest(filename="a.txt", purpose="user_data"), chunks(), ANN)
        with claim(ANN):
            await files.read(file.id, MAX_FILE, ANN)
            with claim(ANN), pytest.raises(RateLimited):
                await files.read(file.id, MAX_FILE, ANN)
        assert responses.state.held.nbytes == 0

    run(plugins, work, caller=150 * KB)
