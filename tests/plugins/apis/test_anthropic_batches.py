"""Anthropic's message batches: the official client, and requests by hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import anthropic
import msgspec
import pytest
from echo.server import PATIENCE

from ostro.core.plugins.manager import PluginManager
from ostro.entrypoints.operations.access.keys import KeyRing, sha256_of
from ostro.entrypoints.operations.documents.batches import Batch
from ostro.entrypoints.operations.documents.state import State, open_state
from ostro.entrypoints.operations.executor import LOW_PRIORITY

URL = "/v1/messages/batches"
NAMES = ("ann", "bob", "eve")
VERSION = {"anthropic-version": "2023-06-01"}


def open_memory() -> State:
    plugins = PluginManager()
    plugins.load()
    return open_state("memory", 86400.0, plugins)


@pytest.fixture(scope="module")
def state() -> State:
    return open_memory()


@pytest.fixture(scope="module")
def server(start: Any, state: State, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server with three keys; eve may not use its model."""
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    file.touch(mode=0o600)
    entry = '[[keys]]\nname = "{0}"\nsha256 = "{1}"\n{2}\n'
    lists = {"eve": 'models = ["other"]'}
    text = (entry.format(name, sha256_of(name), lists.get(name, "")) for name in NAMES)
    file.write_text("".join(text))
    return start(ring=KeyRing(file=file), state=state)


def client_of(server: Any, name: str, kind: Any = anthropic.Anthropic) -> Any:
    """A client that validates the responses."""
    options = {"api_key": name, "max_retries": 0, "_strict_response_validation": True}
    return kind(base_url=server.url, **options)


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[Any]:
    with client_of(server, "ann") as found:
        yield found


def params(text: str = "hi", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": "echo", "max_tokens": 400, "messages": messages, **fields}


def item(name: str, **fields: Any) -> dict[str, Any]:
    return {"custom_id": name, "params": params(name, **fields)}


def end_of(client: Any, id: str) -> Any:
    limit = time.monotonic() + 120
    while (found := client.messages.batches.retrieve(id)).processing_status != "ended":
        assert time.monotonic() < limit, found
        assert found.results_url is None and found.ended_at is None
        time.sleep(0.05)
    return found


def post(server: Any, name: str, path: str, body: Any = None, method: str = "POST") -> Any:
    headers = {**VERSION, "x-api-key": name}
    return server.http.request(method, path, json=body, headers=headers)


def refused(answer: Any, status: int, *words: str) -> None:
    """Check an error in Anthropic's form."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    kind = "not_found_error" if status == 404 else "invalid_request_error"
    assert body.keys() == {"type", "error", "request_id"}
    assert body["error"]["type"] == kind
    assert all(word in body["error"]["message"] for word in words), body


@pytest.mark.parametrize("prefix", ["", "/models"])
def test_results_are_found_below_a_root_path(start: Any, prefix: str) -> None:
    """A proxy may leave the prefix in the paths of requests, or remove it."""
    server = start(root_path="/models", state=open_memory())
    with anthropic.Anthropic(api_key="a", base_url=f"{server.url}{prefix}") as client:
        done = end_of(client, client.messages.batches.create(requests=[item("a")]).id)
    assert done.results_url == f"{server.url}/models/v1/messages/batches/{done.id}/results"
    [result] = server.http.get(done.results_url).text.splitlines()
    assert '"custom_id":"a"' in result


def test_a_billing_line_is_not_part_of_the_prompt(client: Any) -> None:
    texts = ("x-anthropic-billing-header: cch=a1b2c;", "Be kind.")
    system = [{"type": "text", "text": text} for text in texts]
    made = client.messages.batches.create(requests=[item("a", system=system)])
    end_of(client, made.id)
    [found] = client.messages.batches.results(made.id)
    [block] = found.result.message.content
    assert block.text == "system\nBe kind.\nuser\na\nassistant\n"


def test_one_bad_request_is_an_error_and_the_others_run(server: Any, client: Any) -> None:
    names = [f"request-{n}" for n in range(40)]
    requests = [item(name) for name in names]
    requests[7]["params"]["max_tokens"] = -1
    requests[8]["params"]["stream"] = True
    requests[9]["params"] = params(model="nothing")
    made = client.messages.batches.create(requests=requests)
    assert made.processing_status == "in_progress" and made.request_counts.processing == 40
    assert made.id.startswith("msgbatch_")
    assert (made.expires_at - made.created_at).total_seconds() == 86400
    done = end_of(client, made.id)
    counts = done.request_counts
    assert (counts.succeeded, counts.errored, counts.processing) == (37, 3, 0)
    assert done.ended_at >= done.created_at and done.cancel_initiated_at is None
    found = list(client.messages.batches.results(made.id))
    assert [each.custom_id for each in found] == names
    errors = {each.custom_id: each.result for each in found if each.result.type != "succeeded"}
    assert {name: result.type for name, result in errors.items()} == dict.fromkeys(
        names[7:10], "errored"
    )
    assert "max_tokens" in errors[names[7]].error.error.message
    assert "stream" in errors[names[8]].error.error.message
    assert errors[names[9]].error.error.type == "not_found_error"
    assert errors[names[9]].error.request_id
    single = client.messages.create(**params(names[3]))
    message = found[3].result.message
    assert message.content == single.content and message.stop_reason == single.stop_reason
    assert message.usage == single.usage
    ids = {each.result.message.id for each in found if each.result.type == "succeeded"}
    assert len(ids) == 37 and all(id.startswith("msg_") and len(id) > 20 for id in ids)
    assert {each.priority for each in server.echo.seen[-38:-1]} == {LOW_PRIORITY}


def test_the_asynchronous_client(server: Any) -> None:
    async def main() -> list[Any]:
        async with client_of(server, "ann", anthropic.AsyncAnthropic) as client:
            batches = client.messages.batches
            made = await batches.create(requests=[item("a"), item("b")])
            while (await batches.retrieve(made.id)).processing_status != "ended":
                await asyncio.sleep(0.05)
            found = [each async for each in await batches.results(made.id)]
            assert made.id in [each.id async for each in batches.list(limit=1)]
            assert (await batches.delete(made.id)).type == "message_batch_deleted"
            return found

    assert [each.result.type for each in asyncio.run(main())] == ["succeeded"] * 2


def test_a_cancelled_batch_has_a_result_for_every_request(server: Any, client: Any) -> None:
    batches = client.messages.batches
    with server.paused() as stands:
        made = batches.create(requests=[item(f"c{n}-{'x' * 60}"[:64]) for n in range(60)])
        assert stands.wait(PATIENCE)
        with pytest.raises(anthropic.BadRequestError, match="cancel it"):
            batches.delete(made.id)
        cancelled = batches.cancel(made.id)
        assert cancelled.processing_status == "canceling" and cancelled.cancel_initiated_at
        refused(post(server, "ann", f"{URL}/{made.id}/results", method="GET"), 400, "not ended")
        done = end_of(client, made.id)
    counts = done.request_counts
    assert counts.canceled > 0 and counts.succeeded + counts.canceled == 60
    assert (counts.errored, counts.expired) == (0, 0)
    kinds = [each.result.type for each in batches.results(made.id)]
    assert (kinds.count("canceled"), len(kinds)) == (counts.canceled, 60)
    with pytest.raises(anthropic.BadRequestError, match="the batch is cancelled"):
        batches.cancel(made.id)


def older(batch: Batch) -> Batch:
    return msgspec.structs.replace(batch, created=batch.created - 86_401)


def test_requests_that_do_not_run_in_24_hours_expire(
    server: Any, client: Any, state: State
) -> None:
    with server.paused():
        made = client.messages.batches.create(
            requests=[item(f"e{n}-{'x' * 60}"[:64]) for n in range(60)]
        )
        asyncio.run(state.change("ann", "msgbatch", made.id, Batch, older))
        done = end_of(client, made.id)
    assert done.request_counts.expired > 0 and done.request_counts.canceled == 0
    kinds = [each.result.type for each in client.messages.batches.results(made.id)]
    assert kinds.count("expired") == done.request_counts.expired and len(kinds) == 60


def test_pages_and_deletion(server: Any) -> None:
    with client_of(server, "bob") as client:
        batches = client.messages.batches
        made = [batches.create(requests=[item("a")]).id for _ in range(5)]
        newest = made[::-1]
        assert [each.id for each in batches.list(limit=2)] == newest  # fetches further pages
        page = batches.list(limit=2, after_id=newest[0])
        assert [each.id for each in page.data] == newest[1:3] and page.has_more
        page = batches.list(limit=2, before_id=newest[4])
        assert [each.id for each in page.data] == newest[2:4] and page.has_more
        assert (page.first_id, page.last_id) == (newest[2], newest[3])
        for id in made:
            end_of(client, id)
            assert batches.delete(id).id == id
        with pytest.raises(anthropic.NotFoundError):
            batches.retrieve(made[0])
        found = batches.list()
        assert not found.data and not found.has_more and found.last_id is None


def test_a_batch_leaves_one_document_and_no_files(client: Any, state: State) -> None:
    made = client.messages.batches.create(requests=[item("a"), item("b")])
    end_of(client, made.id)
    limit = time.monotonic() + 120
    while (kinds := {each.kind for each in asyncio.run(usage_of(state))}) != {"msgbatch"}:
        assert time.monotonic() < limit, kinds
        time.sleep(0.05)


async def usage_of(state: State) -> Any:
    return await state.usage()


def test_keys_are_separate(server: Any, client: Any) -> None:
    made = client.messages.batches.create(requests=[item("a")])
    end_of(client, made.id)
    for method, path in (
        ("GET", f"{URL}/{made.id}"),
        ("GET", f"{URL}/{made.id}/results"),
        ("POST", f"{URL}/{made.id}/cancel"),
        ("DELETE", f"{URL}/{made.id}"),
    ):
        refused(post(server, "bob", path, method=method), 404)
    assert made.id not in post(server, "bob", URL, method="GET").text
    assert post(server, "ann", f"/v1/batches/{made.id}", method="GET").status_code == 404
    with client_of(server, "eve") as eve:
        own = eve.messages.batches.create(requests=[item("a")])
        end_of(eve, own.id)
        [found] = eve.messages.batches.results(own.id)
    assert found.result.type == "errored"
    assert found.result.error.error.type == "permission_error"


BAD: list[tuple[Any, str]] = [
    ({}, "requests"),
    ({"requests": []}, "requests"),
    ({"requests": [item("a"), item("b"), item("a")]}, "'a' occurs 2 times"),
    ({"requests": [item("a b")]}, "requests[0].custom_id"),
    ({"requests": [item("x" * 65)]}, "requests[0].custom_id"),
    ({"requests": [{"custom_id": "a"}]}, "params"),
    ({"requests": [{"custom_id": "a", "params": [1]}]}, "requests[0].params"),
    ({"requests": [{**item("a"), "url": "/v1/models"}]}, "url"),
    ({"requests": [item("a")], "metadata": {}}, "metadata"),
    ({"requests": [item("a")], "workspace_id": "w"}, "workspace_id"),
    ({"requests": [item("a")], "user_profile_id": "u"}, "user_profile_id"),
]


@pytest.mark.parametrize(("body", "word"), BAD, ids=range(len(BAD)))
def test_bad_batches_are_refused_by_name(server: Any, body: Any, word: str) -> None:
    refused(post(server, "ann", URL, body), 400, word)


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "after_id=x", "before_id=..%2F", "limit=x", "after=a"]
)
def test_bad_pages_are_refused(server: Any, query: str) -> None:
    refused(post(server, "ann", f"{URL}?{query}", method="GET"), 400)


def test_both_cursors_are_refused(server: Any) -> None:
    id = f"msgbatch_{'0' * 32}"
    refused(post(server, "ann", f"{URL}?after_id={id}&before_id={id}", method="GET"), 400)


def test_a_server_without_a_store(start: Any) -> None:
    server = start()
    refused(post(server, "", URL, {"requests": [item("a")]}), 400, "--store")
