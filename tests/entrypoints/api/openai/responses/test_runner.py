"""Responses in the background: what happens after the end of a server, and without capacity."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from echo.generation import ScriptedGeneration
from msgspec.structs import replace

from ostro.core.errors import DocumentNotFound, NotFound, OstroError, Overloaded
from ostro.core.messages.text import ChoiceEnd, Text
from ostro.core.plugins.manager import PluginManager
from ostro.entrypoints.api.openai.responses import runner
from ostro.entrypoints.api.openai.responses.conversations import ConversationRequest
from ostro.entrypoints.api.openai.responses.items import ItemListRequest
from ostro.entrypoints.api.openai.responses.request import (
    ResponseBody,
    ResponseRequest,
    read_response_request,
)
from ostro.entrypoints.api.openai.responses.response import Response, StoredResponse
from ostro.entrypoints.api.openai.responses.responses import Responses
from ostro.entrypoints.api.openai.responses.runner import ResponseRunner
from ostro.entrypoints.api.openai.responses.store import INPUT_KIND, JOB_KIND, KIND, event_kind
from ostro.entrypoints.operations.access.admission import claim
from ostro.entrypoints.operations.access.caller import ANYONE, Caller, Forbidden
from ostro.entrypoints.operations.documents import jobs
from ostro.entrypoints.operations.documents.held_documents import HeldDocuments
from ostro.entrypoints.operations.documents.state import State, open_state


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "RETRY_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(runner, "CHECK_SECONDS", 0.0)


class Operations:
    """Answers every chat with "yes"; the first `errors` are raised instead."""

    def __init__(self, *errors: OstroError) -> None:
        self.errors, self.asked = [*errors], 0
        self.service = SimpleNamespace(admit=self.admit)

    async def admit(self, *_: Any) -> Any:
        return SimpleNamespace(name="m:adapter", model="m")

    async def chat(self, request: Any, caller: Caller) -> Any:
        self.asked += 1
        if self.errors:
            raise self.errors.pop(0)
        generation: Any = ScriptedGeneration([Text(text="yes"), ChoiceEnd(finish="stop")])
        generation.model = "m"
        return generation


@contextmanager
def anyone(name: str) -> Iterator[Caller]:
    yield ANYONE


@contextmanager
def refused(name: str) -> Iterator[Caller]:
    raise Forbidden("the API key is no longer valid")
    yield ANYONE


def run(
    plugins: PluginManager,
    *errors: OstroError,
    attempts: int = 0,
    stream: bool = False,
    acting: Any = anyone,
    delete: bool = False,
    served: Any = ("m",),
) -> tuple[Response | None, int]:
    """Run a response that was begun `attempts` times; return its end, and the number of chats."""
    operations: Any = Operations(*errors)

    async def main() -> Response | None:
        state: State = open_state("memory", None, plugins)
        responses = Responses(state, operations)
        body = ResponseBody(input="x", background=True, stream=stream)
        made = await responses.enqueue(read_response_request(body), ANYONE)

        def begun(stored: StoredResponse) -> StoredResponse:
            return replace(stored, attempts=attempts)

        await state.change("", KIND, made.id, StoredResponse, begun)
        if delete:  # as another server does at the same time
            await state.delete("", KIND, made.id)
        responses_runner = ResponseRunner(responses, acting, poll=0.0)
        responses_runner.serves = lambda model: model in served
        running = asyncio.create_task(responses_runner.run())
        while await state.call(lambda store: store.get("", JOB_KIND, made.id)):
            await asyncio.sleep(0)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        kept = await state.call(lambda store: store.get("", INPUT_KIND, made.id))
        assert (kept is None) is delete and (delete or b'"request":null' in kept.body)
        logged = await state.call(lambda store: store.list("", event_kind(made.id)))
        with suppress(DocumentNotFound):
            found = await responses.get(made.id)
            assert bool(logged) is (stream and found.status == "completed")
            return found
        assert not logged
        return None

    return asyncio.run(asyncio.wait_for(main(), 120)), operations.asked


def status(found: Response | None) -> str:
    assert found is not None
    return found.status


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_is_generated(plugins: PluginManager, stream: bool) -> None:
    found, asked = run(plugins, stream=stream)
    assert (status(found), asked) == ("completed", 1)


def test_a_response_whose_server_ended_is_generated_once_more(plugins: PluginManager) -> None:
    found, asked = run(plugins, attempts=1)
    assert (status(found), asked) == ("completed", 1)
    found, asked = run(plugins, attempts=2)
    assert (status(found), asked) == ("failed", 0)


def test_a_streamed_response_whose_server_ended_has_failed(plugins: PluginManager) -> None:
    found, asked = run(plugins, attempts=1, stream=True)
    assert (status(found), asked) == ("failed", 0)
    assert found is not None and found.error is not None
    assert "the server ended" in found.error.message


def test_a_response_waits_for_capacity(plugins: PluginManager) -> None:
    found, asked = run(plugins, Overloaded("busy"), Overloaded("busy"))
    assert (status(found), asked) == ("completed", 3)


def test_a_key_that_is_gone_fails_the_response(plugins: PluginManager) -> None:
    found, asked = run(plugins, acting=refused)
    assert (status(found), asked) == ("failed", 0)


def test_a_response_whose_conversation_or_file_was_deleted_has_failed(
    plugins: PluginManager,
) -> None:
    found, asked = run(plugins, DocumentNotFound("there is no 'conv_1'", param="conversation"))
    assert (status(found), asked) == ("failed", 1)
    assert found is not None and found.error is not None
    assert "there is no 'conv_1'" in found.error.message


def test_a_response_waits_for_a_server_with_its_model(
    plugins: PluginManager, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Served:
        asked = 0

        def __contains__(self, model: object) -> bool:
            self.asked += 1
            return model == "m" and self.asked > 2

    monkeypatch.setattr(jobs, "SKIP_SECONDS", 0.0)
    found, asked = run(plugins, served=Served())
    assert (status(found), asked) == ("completed", 1)
    assert caplog.text.count("waits for a server with the model 'm'") == 2
    monkeypatch.setattr(runner, "WAIT_SECONDS", -10.0)
    found, asked = run(plugins, NotFound("there is no model 'm'"), served=())
    assert (status(found), asked) == ("failed", 1)


def test_a_deleted_response_is_not_generated_and_leaves_nothing(plugins: PluginManager) -> None:
    assert run(plugins, delete=True) == (None, 0)


@pytest.mark.parametrize("request_limit", [1_000, 150_000])
def test_a_response_waits_for_room_for_what_it_refers_to(
    plugins: PluginManager, request_limit: int
) -> None:
    """The inputs of all responses that one key runs in the background were in memory at once.

    Its own input is none of the documents that a request refers to: it was accepted.
    """
    operations: Any = Operations()

    async def main() -> None:
        state: State = open_state("memory", None, plugins)
        state.held = HeldDocuments(request=request_limit, caller=150_000)
        responses = Responses(state, operations)
        request = ResponseRequest(input="x" * 100_000, background=True)
        made = [await responses.enqueue(request, ANYONE) for _ in range(5)]
        most = 0

        @contextmanager
        def acting(name: str) -> Iterator[Caller]:
            nonlocal most
            with claim(ANYONE):
                yield ANYONE
                most = max(most, state.held.nbytes)

        running = asyncio.create_task(ResponseRunner(responses, acting, poll=0.0).run())
        while any([not (await responses.get(each.id)).ended for each in made]):
            await asyncio.sleep(0)
        assert [(await responses.get(each.id)).status for each in made] == ["completed"] * 5
        assert 100_000 < most < 150_000
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await state.close()

    asyncio.run(asyncio.wait_for(main(), 120))
    assert operations.asked == 5


@pytest.mark.parametrize("ends", ["completed", "cancelled", "deleted"])
def test_a_conversation_has_the_turn_before_the_response_has_ended(
    plugins: PluginManager, ends: str
) -> None:
    """Who waits for the end reads the turn. One cancelled at the last moment leaves none."""
    operations: Any = Operations()

    async def main() -> list[str]:
        state: State = open_state("memory", None, plugins)
        responses, seen = Responses(state, operations), list[str]()
        conversation = await responses.conversations.create(ConversationRequest())
        body = ResponseBody(input="x", background=True, conversation=conversation.id)
        made = await responses.enqueue(read_response_request(body), ANYONE)
        add_turn = responses.conversations.add_turn

        async def watched(*given: Any) -> None:
            seen.append((await responses.get(made.id)).status)
            await add_turn(*given)
            if ends == "cancelled":
                await responses.cancel(made.id)
            elif ends == "deleted":
                await responses.delete(made.id)

        responses.conversations.add_turn = watched  # type: ignore[method-assign]
        responses_runner = ResponseRunner(responses, anyone, poll=0.0)
        responses_runner.serves = lambda model: True
        running = asyncio.create_task(responses_runner.run())
        all_items, left = ItemListRequest(), 2 if ends == "completed" else 0
        while (
            await state.call(lambda store: store.get("", JOB_KIND, made.id))
            or len((await responses.conversations.items(conversation.id, all_items)).items) != left
        ):
            await asyncio.sleep(0)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        return seen

    assert asyncio.run(asyncio.wait_for(main(), 120)) == ["in_progress"]
