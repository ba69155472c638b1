"""The routes of stored chats, conversations, files, uploads and batches with the OpenAI client, and
routes that the server lacks.

python routes_openai_stored.py http://127.0.0.1:8000 [FEATURE ...]
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from routes import Feature, collect, rejected, run_routes, until, wait
from routes_openai import CHAT, MESSAGES, QUESTION, RESPONSE, WEATHER, lax, make_clients

MESSAGE: dict[str, Any] = {"type": "message", "role": "user", "content": QUESTION}


# Stored chat completions


async def stored_chat(client: Any, **fields: Any) -> Any:
    return await wait(
        client.chat.completions.create(messages=MESSAGES, store=True, **CHAT, **fields)
    )


async def chat_retrieve(client: Any) -> None:
    made = await stored_chat(client, metadata={"a": "b"})
    stored = await wait(client.chat.completions.retrieve(made.id))
    assert stored.choices == made.choices and stored.usage == made.usage
    assert stored.metadata == {"a": "b"}
    await wait(client.chat.completions.delete(made.id))


async def chat_retrieve_stream(client: Any) -> None:
    chunks = await collect(
        client.chat.completions.create(messages=MESSAGES, store=True, stream=True, **CHAT)
    )
    stored = await wait(client.chat.completions.retrieve(chunks[0].id))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert stored.choices[0].message.content == text
    await wait(client.chat.completions.delete(chunks[0].id))


async def chat_list(client: Any) -> None:
    mark = f"{type(client).__name__} {time.time_ns()}"
    made = [(await stored_chat(client, metadata={"mark": mark})).id for _ in range(3)]
    found = await collect(
        client.chat.completions.list(metadata={"mark": mark}, limit=2, order="asc")
    )
    assert [chat.id for chat in found] == made
    for identifier in made:
        await wait(client.chat.completions.delete(identifier))


async def chat_update(client: Any) -> None:
    made = await stored_chat(client)
    updated = await wait(client.chat.completions.update(made.id, metadata={"c": "d"}))
    assert updated.metadata == {"c": "d"} and updated.id == made.id
    await wait(client.chat.completions.delete(made.id))


async def chat_messages(client: Any) -> None:
    made = await stored_chat(client)
    (message,) = await collect(lax(client).chat.completions.messages.list(made.id, limit=1))
    assert message.role == "user" and message.content == QUESTION and message.id
    await wait(client.chat.completions.delete(made.id))


async def chat_message_parts(client: Any) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "user", "content": parts}, {"role": "user", "content": "c"}]
    made = await wait(client.chat.completions.create(messages=messages, store=True, **CHAT))
    first, second = await collect(lax(client).chat.completions.messages.list(made.id, limit=1))
    assert [part.text for part in first.content_parts] == ["a", "b"] and first.content is None
    assert second.content == "c" and second.content_parts is None
    await wait(client.chat.completions.delete(made.id))


async def chat_delete(client: Any) -> None:
    made = await stored_chat(client)
    deleted = await wait(client.chat.completions.delete(made.id))
    assert deleted.deleted and deleted.object == "chat.completion.deleted"
    await rejected(lambda: client.chat.completions.retrieve(made.id), 404, made.id)


# Conversations


async def conversation(client: Any) -> None:
    made = await wait(client.conversations.create(items=[MESSAGE], metadata={"a": "b"}))
    assert made.object == "conversation" and made.metadata == {"a": "b"}
    assert await wait(client.conversations.retrieve(made.id)) == made
    updated = await wait(client.conversations.update(made.id, metadata={"c": "d"}))
    assert updated.metadata == {"c": "d"}
    deleted = await wait(client.conversations.delete(made.id))
    assert deleted.deleted and deleted.object == "conversation.deleted"
    await rejected(lambda: client.conversations.retrieve(made.id), 404, made.id)


async def conversation_items(client: Any) -> None:
    made = await wait(client.conversations.create())
    items = client.conversations.items
    added = await wait(items.create(made.id, items=[MESSAGE, MESSAGE, MESSAGE]))
    assert [item.role for item in added.data] == ["user"] * 3 and not added.has_more
    listed = await collect(items.list(made.id, limit=2, order="asc"))
    assert [item.id for item in listed] == [item.id for item in added.data]
    one = await wait(items.retrieve(listed[1].id, conversation_id=made.id))
    assert one == listed[1] and one.content[0].text == QUESTION
    assert (await wait(items.delete(one.id, conversation_id=made.id))).id == made.id
    assert len(await collect(items.list(made.id))) == 2


async def conversation_response(client: Any) -> None:
    made = await wait(client.conversations.create(items=[{**MESSAGE, "content": "Hi, I am Ann."}]))
    response = await wait(client.responses.create(input=WEATHER, conversation=made.id, **RESPONSE))
    assert response.conversation.id == made.id
    items = await collect(client.conversations.items.list(made.id, order="asc"))
    assert [item.type for item in items[:2]] == ["message", "message"] and len(items) == 3


# Files and uploads


async def file_of(client: Any, data: bytes, purpose: str = "user_data", **fields: Any) -> Any:
    return await wait(client.files.create(file=("a.jsonl", data), purpose=purpose, **fields))


async def files(client: Any) -> None:
    made = await file_of(client, b"one\ntwo\n")
    assert made.object == "file" and made.bytes == 8 and made.filename == "a.jsonl"
    assert await wait(client.files.retrieve(made.id)) == made
    assert (await wait(client.files.wait_for_processing(made.id))).status == "processed"
    deleted = await wait(client.files.delete(made.id))
    assert deleted.deleted and deleted.id == made.id
    await rejected(lambda: client.files.retrieve(made.id), 404, made.id)


async def file_content(client: Any) -> None:
    made = await file_of(client, b"one\ntwo\n")
    assert (await wait(client.files.content(made.id))).content == b"one\ntwo\n"
    await wait(client.files.delete(made.id))


async def file_content_stream(client: Any) -> None:
    made = await file_of(client, b"one\ntwo\n")
    manager = client.files.with_streaming_response.content(made.id)
    if hasattr(manager, "__aenter__"):
        async with manager as response:
            data = [part async for part in response.iter_bytes()]
    else:
        with manager as response:
            data = [*response.iter_bytes()]
    assert b"".join(data) == b"one\ntwo\n"
    await wait(client.files.delete(made.id))


async def file_list(client: Any) -> None:
    made = [(await file_of(client, b"a", "assistants")).id for _ in range(3)]
    page = await wait(client.files.list(limit=2, purpose="assistants", order="asc"))
    assert len(page.data) == 2 and page.has_next_page()
    found = await collect(client.files.list(limit=2, purpose="assistants", order="asc"))
    assert [file.id for file in found] == made
    after = await wait(client.files.list(after=made[0], purpose="assistants", order="asc"))
    assert [file.id for file in after.data] == made[1:]
    for identifier in made:
        await wait(client.files.delete(identifier))


async def file_expiry(client: Any) -> None:
    expiry = {"anchor": "created_at", "seconds": 3600}
    made = await file_of(client, b"a", expires_after=expiry)
    assert made.expires_at == made.created_at + 3600
    await wait(client.files.delete(made.id))


UPLOAD = {"filename": "a.txt", "purpose": "user_data", "mime_type": "text/plain"}


async def upload(client: Any) -> None:
    made = await wait(client.uploads.create(bytes=6, **UPLOAD))
    assert made.status == "pending" and made.bytes == 6
    parts = [
        await wait(client.uploads.parts.create(made.id, data=data)) for data in (b"abc", b"def")
    ]
    assert {part.object for part in parts} == {"upload.part"}
    done = await wait(client.uploads.complete(made.id, part_ids=[part.id for part in parts]))
    assert done.status == "completed" and done.file.bytes == 6
    assert (await wait(client.files.content(done.file.id))).content == b"abcdef"
    await wait(client.files.delete(done.file.id))


async def upload_chunked(client: Any) -> None:
    done = await wait(
        client.uploads.upload_file_chunked(file=b"abcdef", bytes=6, part_size=4, **UPLOAD)
    )
    assert done.status == "completed" and done.file.filename == "a.txt"
    await wait(client.files.delete(done.file.id))


async def upload_cancel(client: Any) -> None:
    made = await wait(client.uploads.create(bytes=6, **UPLOAD))
    assert (await wait(client.uploads.cancel(made.id))).status == "cancelled"
    await rejected(lambda: client.uploads.parts.create(made.id, data=b"abc"), 400, "cancelled")


# Batches

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {**CHAT, "messages": MESSAGES},
    "/v1/completions": {"model": "default", "prompt": "a", "max_tokens": 4},
    "/v1/embeddings": {"model": "default", "input": "a"},
    "/v1/responses": {**RESPONSE, "input": QUESTION},
}


async def batch_of(client: Any, route: str, body: dict[str, Any]) -> Any:
    line = {"custom_id": "a", "method": "POST", "url": route, "body": body}
    file = await file_of(client, json.dumps(line).encode(), "batch")
    return await wait(
        client.batches.create(
            input_file_id=file.id, endpoint=route, completion_window="24h", metadata={"a": "b"}
        )
    )


async def lines_of(client: Any, file: str) -> list[Any]:
    text = (await wait(client.files.content(file))).text
    return [json.loads(line) for line in text.splitlines()]


def batch(route: str) -> Feature:
    """A batch of requests of a route, until its output."""

    async def whole(client: Any) -> None:
        made = await batch_of(client, route, BODIES[route])
        assert made.object == "batch" and made.endpoint == route and made.metadata == {"a": "b"}
        done = await until(
            lambda: client.batches.retrieve(made.id), lambda x: x.status == "completed"
        )
        assert done.request_counts.completed == 1 and done.error_file_id is None
        (line,) = await lines_of(client, done.output_file_id)
        assert line["custom_id"] == "a" and line["response"]["status_code"] == 200

    return Feature("/v1/batches, /v1/batches/{id}", f"create, retrieve, output of {route}", whole)


async def batch_errors(client: Any) -> None:
    body = {"model": "default", "input": 1}
    bad = {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": body}
    good = {**bad, "custom_id": "b", "body": BODIES["/v1/responses"]}
    lines = "\n".join([json.dumps(bad), "no JSON", json.dumps(good)])
    file = await file_of(client, lines.encode(), "batch")
    made = await wait(
        client.batches.create(
            input_file_id=file.id, endpoint="/v1/responses", completion_window="24h"
        )
    )
    done = await until(lambda: client.batches.retrieve(made.id), lambda x: x.status == "completed")
    assert (done.request_counts.failed, done.request_counts.completed) == (2, 1)
    errors = await lines_of(client, done.error_file_id)
    assert errors[0]["response"]["status_code"] == 400 and errors[0]["custom_id"] == "a"
    assert errors[1]["error"]["message"], errors[1]


async def batch_list(client: Any) -> None:
    made = [
        (await batch_of(client, "/v1/embeddings", BODIES["/v1/embeddings"])).id for _ in range(3)
    ]
    found = [batch.id for batch in await collect(client.batches.list(limit=2))]
    assert found[:3] == made[::-1]


async def batch_cancel(client: Any) -> None:
    body = {**CHAT, "max_tokens": 900, "messages": MESSAGES, "min_tokens": 800}
    made = await batch_of(client, "/v1/chat/completions", body)
    assert (await wait(client.batches.cancel(made.id))).status in ("cancelling", "cancelled")
    await until(lambda: client.batches.retrieve(made.id), lambda x: x.status == "cancelled")


# Routes that the server lacks


def absent(route: str, name: str, call: Callable[[Any], Any]) -> Feature:
    async def whole(client: Any) -> str:
        return await rejected(lambda: call(client), 404, route)

    return Feature(route, name, whole)


CHATS, CONVERSATIONS = "/v1/chat/completions", "/v1/conversations"
ITEMS = "/v1/conversations/{id}/items, /v1/conversations/{id}/items/{item}"
UPLOADS = "/v1/uploads, /v1/uploads/{id}/parts, /v1/uploads/{id}/complete"
FEATURES = [
    Feature(f"GET {CHATS}/{{id}}", "retrieve, store", chat_retrieve, chat_retrieve_stream),
    Feature(f"GET {CHATS}", "list", chat_list),
    Feature(f"POST {CHATS}/{{id}}", "update", chat_update),
    Feature(f"GET {CHATS}/{{id}}/messages", "messages.list *", chat_messages),
    Feature(f"GET {CHATS}/{{id}}/messages", "messages.list, parts *", chat_message_parts),
    Feature(f"DELETE {CHATS}/{{id}}", "delete", chat_delete),
    Feature(
        f"{CONVERSATIONS}, {CONVERSATIONS}/{{id}}", "create, retrieve, update, delete", conversation
    ),
    Feature(ITEMS, "items: all methods", conversation_items),
    Feature("POST /v1/responses", "create, conversation", conversation_response),
    Feature("/v1/files, /v1/files/{id}", "create, retrieve, delete", files),
    Feature("GET /v1/files", "list, cursor", file_list),
    Feature("GET /v1/files/{id}/content", "content", file_content, file_content_stream),
    Feature("POST /v1/files", "create, expires_after", file_expiry),
    Feature(UPLOADS, "create, parts, complete", upload),
    Feature(UPLOADS, "upload_file_chunked", upload_chunked),
    Feature("POST /v1/uploads/{id}/cancel", "cancel", upload_cancel),
    *(batch(route) for route in BODIES),
    Feature("POST /v1/batches", "create, error file", batch_errors),
    Feature("GET /v1/batches", "list", batch_list),
    Feature("POST /v1/batches/{id}/cancel", "cancel", batch_cancel),
    absent("/v1/moderations", "moderations.create", lambda c: c.moderations.create(input="a")),
    absent("/v1/fine_tuning/jobs", "fine_tuning.jobs.list", lambda c: c.fine_tuning.jobs.list()),
    absent(
        *("/v1/fine_tuning/jobs", "fine_tuning.jobs.create"),
        lambda c: c.fine_tuning.jobs.create(model="default", training_file="file-1"),
    ),
    absent("/v1/assistants", "beta.assistants.list", lambda c: c.beta.assistants.list()),
    absent("/v1/threads", "beta.threads.create", lambda c: c.beta.threads.create()),
    absent("/v1/vector_stores", "vector_stores.list", lambda c: c.vector_stores.list()),
    absent("/v1/vector_stores", "vector_stores.create", lambda c: c.vector_stores.create()),
    absent("/v1/evals", "evals.list", lambda c: c.evals.list()),
    absent("/v1/containers", "containers.list", lambda c: c.containers.list()),
    absent("/v1/skills", "skills.list", lambda c: c.skills.list()),
    absent("/v1/videos", "videos.list", lambda c: c.videos.list()),
    absent(
        *("/v1/realtime/client_secrets", "realtime.client_secrets.create"),
        lambda c: c.realtime.client_secrets.create(),
    ),
    absent("/v1/models/starter", "models.delete", lambda c: c.models.delete("starter")),
]

if __name__ == "__main__":
    run_routes(FEATURES, make_clients)
