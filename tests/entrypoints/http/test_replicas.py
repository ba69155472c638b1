"""Two servers with one store: what one of them stores is that of the other, too."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial

import openai
import pytest
from echo.server import Running, Start, make_state, wait_until

from ostro.entrypoints.operations.documents import documents
from ostro.entrypoints.operations.documents.batch_runner import BatchRunner

CHAT = "/v1/chat/completions"
Clients = tuple[openai.OpenAI, openai.OpenAI]


@pytest.fixture(scope="module")
def servers(start: Start, tmp_path_factory: pytest.TempPathFactory) -> tuple[Running, Running]:
    folder = str(tmp_path_factory.mktemp("store") / "state")
    with pytest.MonkeyPatch.context() as patch:
        # Both look for batches so often that only the lease keeps one of them away.
        patch.setattr(documents, "BatchRunner", partial(BatchRunner, poll=0.02))
        return start(state=make_state(folder)), start(state=make_state(folder))


@pytest.fixture(scope="module")
def clients(servers: tuple[Running, Running]) -> Iterator[Clients]:
    ann, bob = (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        for server in servers
    )
    with ann, bob:
        yield ann, bob


def lines(count: int) -> bytes:
    """The input file of a batch; every request has its own prompt."""
    bodies = [
        {"messages": [{"role": "user", "content": f"request {number}"}], "max_tokens": 4}
        for number in range(count)
    ]
    return b"".join(
        json.dumps({"custom_id": f"c{n}", "method": "POST", "url": CHAT, "body": body}).encode()
        + b"\n"
        for n, body in enumerate(bodies)
    )


def end_of(client: openai.OpenAI, id: str) -> openai.types.Batch:
    deadline = time.monotonic() + 120
    while (batch := client.batches.retrieve(id)).status not in ("completed", "cancelled"):
        assert batch.status not in ("failed", "expired") and time.monotonic() < deadline, batch
        time.sleep(0.05)
    return batch


def test_a_file_of_one_server_is_read_listed_and_deleted_at_the_other(
    clients: Clients,
) -> None:
    ann, bob = clients
    data = bytes(range(256)) * 8000  # above 1 MB a form is spooled
    file = ann.files.create(file=("a.bin", data), purpose="user_data")
    assert bob.files.retrieve(file.id) == file
    assert bob.files.content(file.id).content == data
    assert file.id in [each.id for each in bob.files.list()]
    assert bob.files.delete(file.id).deleted
    for client in clients:
        with pytest.raises(openai.NotFoundError):
            client.files.retrieve(file.id)


def test_a_batch_of_one_server_is_read_at_the_other_and_runs_once(
    servers: tuple[Running, Running], clients: Clients
) -> None:
    ann, bob = clients
    for server in servers:
        server.echo.seen.clear()
    count = 40
    file = bob.files.create(file=("in.jsonl", lines(count)), purpose="batch")
    made = ann.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    done = end_of(bob, made.id)
    assert done.request_counts is not None and done.output_file_id is not None
    assert done.request_counts.completed == count
    results = bob.files.content(done.output_file_id).text.splitlines()
    assert len(results) == count
    assert [each.id for each in bob.batches.list()] == [each.id for each in ann.batches.list()]
    ran = [len(server.echo.seen) for server in servers]
    assert sorted(ran) == [0, count], "one server runs all requests, and each of them once"


def test_a_batch_is_cancelled_at_the_other_server(
    servers: tuple[Running, Running], clients: Clients
) -> None:
    ann, bob = clients
    with servers[0].paused(), servers[1].paused():
        file = ann.files.create(file=("in.jsonl", lines(500)), purpose="batch")
        made = ann.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        wait_until(lambda: any(server.echo.live for server in servers))
        assert bob.batches.retrieve(made.id).status == "in_progress"
        assert bob.batches.cancel(made.id).status in ("cancelling", "cancelled")
        done = end_of(ann, made.id)
    assert done.status == "cancelled" and done.request_counts is not None
    assert done.request_counts.completed < 500
    wait_until(lambda: not any(server.echo.live for server in servers), "its requests run on")


def test_a_conversation_and_a_stored_chat_are_those_of_both_servers(clients: Clients) -> None:
    ann, bob = clients
    talk = ann.conversations.create(items=[{"type": "message", "role": "user", "content": "one"}])
    bob.responses.create(model="echo", input="two", conversation=talk.id)
    items = ann.conversations.items.list(talk.id, order="asc").data
    assert [item.type for item in items] == ["message"] * 3
    chat = ann.chat.completions.create(
        model="echo", messages=[{"role": "user", "content": "three"}], store=True
    )
    assert bob.chat.completions.retrieve(chat.id).choices == chat.choices
    assert bob.chat.completions.delete(chat.id).deleted
    with pytest.raises(openai.NotFoundError):
        ann.chat.completions.retrieve(chat.id)
