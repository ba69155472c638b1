"""Stored chat completions, with the official client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from echo.server import Running, Start, make_client, make_state, user


@pytest.fixture(scope="module")
def server(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Running:
    folder = tmp_path_factory.mktemp("store") / "state"
    return start(state=make_state(str(folder)), keys=["one", "two"])


@pytest.fixture(scope="module")
def client(server: Running) -> Any:
    with make_client(server, "one") as found:
        yield found


def test_completions_are_stored_listed_changed_and_deleted(
    server: Running, client: openai.OpenAI
) -> None:
    chats, messages = client.chat.completions, [user("one")]
    common: Any = {"model": "echo", "messages": messages, "store": True}
    made = [chats.create(**common, metadata={"n": str(i % 2)}) for i in range(4)]
    assert [chat.id for chat in chats.list(limit=3)] == [chat.id for chat in made]
    assert [chat.id for chat in chats.list(order="desc")] == [chat.id for chat in made[::-1]]
    odd = chats.list(metadata={"n": "1"}, limit=1)
    assert odd.has_more and [chat.id for chat in odd] == [made[1].id, made[3].id]
    assert not chats.list(model="other").data
    assert chats.retrieve(made[0].id) == made[0]
    changed = chats.update(made[0].id, metadata={"a": "b"})
    assert changed.metadata == {"a": "b"} and chats.retrieve(made[0].id) == changed
    assert changed.choices == made[0].choices
    with make_client(server, "two") as other:
        assert not other.chat.completions.list().data
        with pytest.raises(openai.NotFoundError):
            other.chat.completions.delete(made[0].id)
    assert chats.delete(made[0].id).deleted
    with pytest.raises(openai.NotFoundError):
        chats.retrieve(made[0].id)
    with pytest.raises(openai.BadRequestError):
        chats.list(after="banana")


def test_a_stream_is_stored_at_its_end(client: openai.OpenAI) -> None:
    chats = client.chat.completions
    common: Any = {"model": "echo", "messages": [user("abc")]}
    chunks = [*chats.create(**common, store=True, stream=True)]
    text = "".join(x.choices[0].delta.content or "" for x in chunks if x.choices)
    found = chats.retrieve(chunks[0].id)
    assert found.choices[0].message.content == text and found.metadata == {}
    assert found.choices == chats.create(**common).choices


def test_messages_are_listed(server: Running, client: openai.OpenAI) -> None:
    messages: Any = [user(f"text {i}") for i in range(3)]
    made = client.chat.completions.create(model="echo", messages=messages, store=True)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="one") as lax:  # all roles
        found: list[Any] = [*lax.chat.completions.messages.list(made.id, limit=2)]
        assert [message.content for message in found] == ["text 0", "text 1", "text 2"]
        newest = [*lax.chat.completions.messages.list(made.id, order="desc")]
        assert newest == found[::-1] and found[0].role == "user"
        with pytest.raises(openai.BadRequestError):
            lax.chat.completions.messages.list(made.id, after="banana")


def test_other_completions_are_not_stored(client: openai.OpenAI, start: Start) -> None:
    plain: Any = client.chat.completions.create(model="echo", messages=[user("x")])  # type: ignore[list-item]
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.retrieve(plain.id)
    server = start()
    refused = server.chat("hi", store=True)
    assert refused.status_code == 400 and "--store" in refused.json()["error"]["message"]
    assert server.chat("hi", store=False).status_code == 200
    assert server.http.get("/v1/chat/completions").status_code == 400


def test_a_broken_store_stops_stored_completions_only(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    (folder / "state.db").write_bytes(b"not a database" * 1000)
    server = start(state=make_state(str(folder)))
    assert server.chat("hi", store=True).status_code == 503
    assert server.chat("hi").status_code == 200
