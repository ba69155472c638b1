"""The synchronous and the asynchronous client of OpenAI on every text route, strictly validated."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest
from echo.server import LOGPROBS, Running, Start, make_state, user

CLIENTS = [openai.OpenAI, openai.AsyncOpenAI]
HI: Any = {"model": "echo", "messages": [user("hi")]}


@pytest.fixture(scope="module")
def server(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Running:
    return start(state=make_state(str(tmp_path_factory.mktemp("store") / "state")))


async def wait(value: Any) -> Any:
    """The result of a call of either client."""
    return await value if inspect.isawaitable(value) else value


async def collect(call: Any) -> list[Any]:
    """The events of a stream, or the items of all pages, of either client."""
    found = call if hasattr(call, "__aiter__") else await wait(call)
    return [x async for x in found] if hasattr(found, "__aiter__") else [*found]


async def chats(client: Any) -> None:
    api = client.chat.completions
    whole = await wait(api.create(**HI, logprobs=True, top_logprobs=2, n=2))
    assert len(whole.choices) == 2 and whole.choices[0].logprobs.content
    usage = {"include_usage": True}
    chunks = await collect(api.create(**HI, stream=True, stream_options=usage))
    text = "".join(x.choices[0].delta.content or "" for x in chunks if x.choices)
    assert text == whole.choices[0].message.content and chunks[-1].usage.total_tokens
    made = await wait(api.create(**HI, store=True, metadata={"a": "b"}))
    assert await wait(api.retrieve(made.id)) == made
    assert (await wait(api.update(made.id, metadata={"c": "d"}))).metadata == {"c": "d"}
    assert [each.id for each in await collect(api.list(model="echo"))] == [made.id]
    assert (await wait(api.delete(made.id))).deleted


async def completions(client: Any) -> None:
    fields = {"model": "echo", "prompt": "abc", "max_tokens": 3}
    # With echo, the first log probability is null, which the client's type rejects.
    assert (await wait(client.completions.create(**fields, echo=True))).choices[0].text == "abcabc"
    whole = await wait(client.completions.create(**fields, logprobs=1))
    assert whole.choices[0].logprobs.tokens == ["a", "b", "c"]
    # Before the last chunk, finish_reason is null, which the client's type rejects too.
    lax = client.copy(_extra_kwargs={"_strict_response_validation": False})
    chunks = await collect(lax.completions.create(**fields, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "abc"


async def models(client: Any) -> None:
    assert [each.id for each in await collect(client.models.list())] == ["echo"]
    assert (await wait(client.models.retrieve("echo"))).object == "model"


async def responses(client: Any) -> None:
    api, fields = client.responses, {"model": "echo", "input": "abc"}
    whole = await wait(api.create(**fields, include=LOGPROBS))
    events = await collect(api.create(**fields, stream=True))
    assert events[-1].response.output_text == whole.output_text
    assert await collect(api.retrieve(events[0].response.id, stream=True)) == events
    assert (await wait(api.retrieve(whole.id))).status == "completed"
    assert len(await collect(api.input_items.list(whole.id))) == 1
    assert (await wait(api.input_tokens.count(**fields))).input_tokens > 3
    queued = await wait(api.create(model="echo", input="x" * 1500, background=True))
    assert queued.status == "queued"
    assert (await wait(api.cancel(queued.id))).status == "cancelled"
    await wait(api.delete(whole.id))


async def beta(client: Any) -> None:
    api = client.beta.responses  # its methods add beta=true to the query
    made = await wait(api.create(model="echo", input="abc"))
    assert (await wait(api.retrieve(made.id))).output == made.output
    assert len(await collect(api.input_items.list(made.id))) == 1
    unknown = client.responses.retrieve
    for query in ({"beta": "x"}, {"gamma": "true"}):
        with pytest.raises(openai.BadRequestError, match="|".join(query)):
            await wait(unknown(made.id, extra_query=query))


async def conversations(client: Any) -> None:
    api = client.conversations
    made = await wait(api.create(items=[user("one")], metadata={"a": "b"}))
    assert await wait(api.retrieve(made.id)) == made
    assert (await wait(api.update(made.id, metadata={"c": "d"}))).metadata == {"c": "d"}
    added = (await wait(api.items.create(made.id, items=[user("two")]))).data[0]
    assert await wait(api.items.retrieve(added.id, conversation_id=made.id)) == added
    assert len(await collect(api.items.list(made.id, order="asc"))) == 2
    assert (await wait(api.items.delete(added.id, conversation_id=made.id))).id == made.id
    assert (await wait(api.delete(made.id))).deleted


async def files(client: Any) -> None:
    made = await wait(client.files.create(file=("a.txt", b"abc"), purpose="user_data"))
    assert await wait(client.files.retrieve(made.id)) == made
    assert (await wait(client.files.content(made.id))).content == b"abc"
    assert made.id in [each.id for each in await collect(client.files.list(purpose="user_data"))]
    assert (await wait(client.files.delete(made.id))).deleted
    api = client.uploads
    form = {"filename": "a", "purpose": "batch", "bytes": 3, "mime_type": "application/jsonl"}
    upload = await wait(api.create(**form))
    part = await wait(api.parts.create(upload.id, data=b"abc"))
    assert (await wait(api.complete(upload.id, part_ids=[part.id]))).status == "completed"
    other = await wait(api.create(**form))
    assert (await wait(api.cancel(other.id))).status == "cancelled"


async def batches(client: Any) -> None:
    url = "/v1/completions"
    line = {"custom_id": "a", "method": "POST", "url": url, "body": {"prompt": "abc"}}
    data = json.dumps(line).encode()
    file = await wait(client.files.create(file=("a.jsonl", data), purpose="batch"))
    fields = {"input_file_id": file.id, "endpoint": url, "completion_window": "24h"}
    made = await wait(client.batches.create(**fields))
    while (made := await wait(client.batches.retrieve(made.id))).status != "completed":
        await asyncio.sleep(0.05)
    assert made.request_counts.completed == 1
    assert made.id in [each.id for each in await collect(client.batches.list())]
    with pytest.raises(openai.BadRequestError):
        await wait(client.batches.cancel(made.id))


Scenario = Callable[[Any], Awaitable[None]]
SCENARIOS: list[Scenario] = [
    chats,
    completions,
    models,
    responses,
    beta,
    conversations,
    files,
    batches,
]


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
@pytest.mark.timeout(60)
def test_both_clients_accept_every_answer(server: Running, kind: Any, scenario: Scenario) -> None:
    client = kind(
        base_url=f"{server.url}/v1",
        api_key="none",
        max_retries=0,
        _strict_response_validation=True,
    )

    async def main() -> None:
        try:
            await scenario(client)
        finally:
            await wait(client.close())

    asyncio.run(main())
