"""Every route of Anthropic's API with the Anthropic client.

python routes_anthropic.py http://127.0.0.1:8000 [FEATURE ...]
"""

from __future__ import annotations

from typing import Any

import anthropic
from features import PARAMETERS, REPORT, SENTENCE, Person
from routes import KEY, PIXEL, Feature, collect, finish, rejected, run_routes, until, wait

QUESTION = "What is the capital of France?"
MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]
SENTENCES: list[Any] = [{"role": "user", "content": SENTENCE}]
WEATHER: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
BASE: dict[str, Any] = {"model": "default", "max_tokens": 200}
GREEDY: dict[str, Any] = {**BASE, "extra_body": {"temperature": 0}}  # the client has no field
TOOL: dict[str, Any] = {
    "name": "get_weather",
    "description": "Get the current weather in a city.",
    "input_schema": PARAMETERS,
}


def make_clients(url: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"base_url": url, "api_key": KEY, "timeout": 120, "max_retries": 0}
    fields |= {"_strict_response_validation": True}
    return {"sync": anthropic.Anthropic(**fields), "async": anthropic.AsyncAnthropic(**fields)}


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


# Messages


async def message(client: Any) -> None:
    made = await wait(client.messages.create(messages=MESSAGES, **GREEDY))
    assert made.type == "message" and made.role == "assistant" and made.stop_reason == "end_turn"
    assert [block.type for block in made.content] == ["text"] and "Paris" in text_of(made)
    assert made.usage.input_tokens + (made.usage.cache_read_input_tokens or 0) > 5
    assert made.usage.output_tokens > 1


async def message_stream(client: Any) -> None:
    events = await collect(client.messages.create(messages=MESSAGES, stream=True, **GREEDY))
    types = [event.type for event in events]
    assert types[:2] == ["message_start", "content_block_start"]
    assert types[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    deltas = [event.delta.text for event in events if event.type == "content_block_delta"]
    assert "Paris" in "".join(deltas) and events[-2].delta.stop_reason == "end_turn"


async def message_helper(client: Any) -> None:
    events, final = await finish(
        client.messages.stream(messages=MESSAGES, **GREEDY), "get_final_message"
    )
    texts = [event.text for event in events if event.type == "text"]
    assert "".join(texts) == text_of(final) and "Paris" in text_of(final)


async def message_limits(client: Any) -> None:
    made = await wait(client.messages.create(messages=MESSAGES, **{**GREEDY, "max_tokens": 2}))
    assert made.stop_reason == "max_tokens" and made.usage.output_tokens == 2
    made = await wait(client.messages.create(messages=MESSAGES, stop_sequences=["Paris"], **GREEDY))
    assert made.stop_reason == "stop_sequence" and made.stop_sequence == "Paris"


async def message_tools(client: Any) -> None:
    made = await wait(client.messages.create(messages=WEATHER, tools=[TOOL], **GREEDY))
    (use,) = (block for block in made.content if block.type == "tool_use")
    assert made.stop_reason == "tool_use" and use.input == {"city": "Paris"}
    result = {"type": "tool_result", "tool_use_id": use.id, "content": REPORT}
    turns = [
        *WEATHER,
        {"role": "assistant", "content": made.content},
        {"role": "user", "content": [result]},
    ]
    made = await wait(client.messages.create(messages=turns, tools=[TOOL], **GREEDY))
    assert "21" in text_of(made) and made.stop_reason == "end_turn"


async def message_tools_stream(client: Any) -> None:
    events, final = await finish(
        client.messages.stream(messages=WEATHER, tools=[TOOL], **GREEDY), "get_final_message"
    )
    assert "input_json" in {event.type for event in events}
    (use,) = (block for block in final.content if block.type == "tool_use")
    assert use.name == "get_weather" and use.input == {"city": "Paris"}


async def message_parse(client: Any) -> None:
    made = await wait(client.messages.parse(messages=SENTENCES, output_format=Person, **GREEDY))
    assert made.parsed_output == Person(name="Anna", age=34)


async def message_parse_stream(client: Any) -> None:
    manager = client.messages.stream(messages=SENTENCES, output_format=Person, **GREEDY)
    _, final = await finish(manager, "get_final_message")
    assert final.parsed_output == Person(name="Anna", age=34)


async def message_raw(client: Any) -> None:
    raw = await wait(client.messages.with_raw_response.create(messages=MESSAGES, **GREEDY))
    assert raw.status_code == 200 and raw.headers["request-id"]
    assert "Paris" in text_of(await wait(raw.parse()))


THINKING: dict[str, Any] = {"type": "enabled", "budget_tokens": 1024}


async def thinking(client: Any) -> None:
    fields = {**GREEDY, "max_tokens": 1025}
    made = await wait(client.messages.create(messages=MESSAGES, thinking=THINKING, **fields))
    assert text_of(made) and {block.type for block in made.content} <= {"thinking", "text"}


async def thinking_stream(client: Any) -> None:
    fields = {**GREEDY, "max_tokens": 1025}
    events = await collect(
        client.messages.create(messages=MESSAGES, thinking=THINKING, stream=True, **fields)
    )
    assert events[-1].type == "message_stop"


async def cached(client: Any) -> None:
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    made = await wait(
        client.messages.create(
            messages=MESSAGES, system=system, metadata={"user_id": "a"}, **GREEDY
        )
    )
    assert text_of(made) and made.usage.cache_read_input_tokens is not None


# Content blocks


def accepted(name: str, *blocks: dict[str, Any], turns: list[Any] | None = None) -> Feature:
    """Blocks of the user, after other turns, which the model reads."""

    async def tokens(client: Any, messages: list[Any]) -> int:
        count = await wait(client.messages.count_tokens(model="default", messages=messages))
        return int(count.input_tokens)

    async def whole(client: Any) -> None:
        content = [*blocks, {"type": "text", "text": QUESTION}]
        messages = [*(turns or []), {"role": "user", "content": content}]
        made = await wait(client.messages.create(messages=messages, **GREEDY))
        usage = made.usage
        read = usage.input_tokens + (usage.cache_read_input_tokens or 0)
        assert text_of(made) and read == await tokens(client, messages)
        assert read > await tokens(client, MESSAGES)

    return Feature("POST /v1/messages", f"create, {name}", whole)


async def typed_tool(client: Any) -> None:
    tool = {"type": "bash_20250124", "name": "bash"}
    made = await wait(
        client.messages.create(
            messages=WEATHER, tools=[tool], tool_choice={"type": "any"}, **GREEDY
        )
    )
    assert made.content[0].type == "tool_use" and made.content[0].name == "bash"


def refused(name: str, *words: str, content: Any = None, **fields: Any) -> Feature:
    """A block or a field that the server rejects by name."""

    async def whole(client: Any) -> str:
        messages = [{"role": "user", "content": content or QUESTION}]
        given = {**GREEDY, **fields}
        return await rejected(
            lambda: client.messages.create(messages=messages, **given), 400, *words
        )

    return Feature("POST /v1/messages", f"create, {name}", whole)


def document(**source: str) -> dict[str, Any]:
    return {"type": "document", "title": "Cities", "source": source}


IMAGE = {"type": "base64", "media_type": "image/png", "data": PIXEL}
ASKED = [{"role": "user", "content": "Hi"}]
THOUGHT = {"type": "thinking", "thinking": "A greeting.", "signature": "x"}
REDACTED = {"type": "redacted_thinking", "data": "x"}
SAID = {"type": "text", "text": "Hello."}
SEARCH = {"type": "search_result", "title": "a", "source": "b", "content": [SAID]}
CITED_SEARCH = {**SEARCH, "citations": {"enabled": True}}
SERVER_USE = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
TEXT = {"type": "text", "media_type": "text/plain", "data": "Paris is a city."}
CITED = {**document(**TEXT), "citations": {"enabled": True}}
PDF = document(type="base64", media_type="application/pdf", data="JVBERi0=")


async def image(client: Any) -> None:
    messages: list[Any] = [{"role": "user", "content": [{"type": "image", "source": IMAGE}]}]
    made = await wait(client.messages.create(messages=messages, model="vision", max_tokens=4))
    assert made.usage.input_tokens > 4 and made.usage.output_tokens > 0


async def image_stream(client: Any) -> None:
    messages: list[Any] = [{"role": "user", "content": [{"type": "image", "source": IMAGE}]}]
    fields = {"messages": messages, "model": "vision", "max_tokens": 4}
    events = await collect(client.messages.create(stream=True, **fields))
    assert events[-1].type == "message_stop"


# Tokens, batches, models


async def count(client: Any) -> None:
    counted = await wait(
        client.messages.count_tokens(
            model="default", messages=WEATHER, tools=[TOOL], system="Be brief."
        )
    )
    made = await wait(
        client.messages.create(messages=WEATHER, tools=[TOOL], system="Be brief.", **GREEDY)
    )
    usage = made.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def requests_of(*names: str, **fields: Any) -> list[Any]:
    params = {"model": "default", "max_tokens": 20, "messages": MESSAGES, **fields}
    return [{"custom_id": name, "params": params} for name in names]


def ended(batch: Any) -> bool:
    return bool(batch.processing_status == "ended")


async def batch(client: Any) -> None:
    batches = client.messages.batches
    bad = requests_of("c", max_tokens=-1)
    made = await wait(batches.create(requests=[*requests_of("a", "b"), *bad]))
    assert made.type == "message_batch" and made.processing_status == "in_progress"
    done = await until(lambda: batches.retrieve(made.id), ended)
    assert (done.request_counts.succeeded, done.request_counts.errored) == (2, 1)
    lines = {line.custom_id: line.result for line in await collect(batches.results(made.id))}
    assert "Paris" in text_of(lines["a"].message) and lines["c"].type == "errored"
    assert lines["c"].error.error.type == "invalid_request_error"
    deleted = await wait(batches.delete(made.id))
    assert deleted.id == made.id and deleted.type == "message_batch_deleted"
    await rejected(lambda: batches.retrieve(made.id), 404, made.id)


async def batch_list(client: Any) -> None:
    batches = client.messages.batches
    made = [(await wait(batches.create(requests=requests_of("a")))).id for _ in range(3)]
    page = await wait(batches.list(limit=2))
    assert [x.id for x in page.data] == made[:0:-1] and page.has_next_page()
    assert [x.id for x in await collect(batches.list(limit=2))][:3] == made[::-1]
    assert [x.id for x in (await wait(batches.list(after_id=made[1], limit=1))).data] == made[:1]
    assert [x.id for x in (await wait(batches.list(before_id=made[1]))).data] == made[2:]


async def batch_cancel(client: Any) -> None:
    text = {"type": "string", "minLength": 4000}
    schema = {"type": "object", "properties": {"a": text}, "required": ["a"]}
    long = {
        "max_tokens": 900,
        "output_config": {"format": {"type": "json_schema", "schema": schema}},
    }
    names = [f"a{i}" for i in range(100)]
    made = await wait(client.messages.batches.create(requests=requests_of(*names, **long)))
    cancelled = await wait(client.messages.batches.cancel(made.id))
    assert cancelled.processing_status == "canceling" and cancelled.cancel_initiated_at
    done = await until(lambda: client.messages.batches.retrieve(made.id), ended)
    lines = await collect(client.messages.batches.results(made.id))
    canceled = [line for line in lines if line.result.type == "canceled"]
    assert len(lines) == 100 and done.request_counts.canceled == len(canceled) > 0


async def models(client: Any) -> None:
    (found,) = [x for x in await collect(client.models.list(limit=1)) if x.id == "starter"]
    assert found.type == "model" and found.max_input_tokens == 1024 and found.display_name


async def model(client: Any) -> None:
    assert (await wait(client.models.retrieve("starter"))).id == "starter"
    await rejected(lambda: client.models.retrieve("absent"), 404, "absent")


# The namespace beta


async def beta(client: Any) -> None:
    made = await wait(client.beta.messages.create(messages=MESSAGES, betas=["x"], **GREEDY))
    assert made.type == "message" and "Paris" in text_of(made)
    counted = await wait(client.beta.messages.count_tokens(model="default", messages=MESSAGES))
    assert counted.input_tokens > 5


async def beta_stream(client: Any) -> None:
    _, final = await finish(
        client.beta.messages.stream(messages=MESSAGES, **GREEDY), "get_final_message"
    )
    assert "Paris" in text_of(final)


async def beta_runner(client: Any) -> None:
    is_async = isinstance(client, anthropic.AsyncAnthropic)
    decorate: Any = anthropic.beta_async_tool if is_async else anthropic.beta_tool

    def get_weather(city: str) -> str:
        """Get the current weather in a city."""
        return f"{city}: {REPORT}"

    async def get_weather_async(city: str) -> str:
        """Get the current weather in a city."""
        return f"{city}: {REPORT}"

    get_weather_async.__name__ = "get_weather"
    tool = decorate(get_weather_async if is_async else get_weather)
    runner = client.beta.messages.tool_runner(messages=WEATHER, tools=[tool], **GREEDY)
    assert "21" in text_of(await wait(runner.until_done()))


async def beta_batch(client: Any) -> None:
    batches = client.beta.messages.batches
    made = await wait(batches.create(requests=requests_of("a")))
    await until(lambda: batches.retrieve(made.id), ended)
    (line,) = await collect(await wait(batches.results(made.id)))
    assert "Paris" in text_of(line.result.message)
    assert (await wait(batches.list(limit=1))).data[0].id == made.id
    await rejected(lambda: batches.cancel(made.id), 400, "completed")
    assert (await wait(batches.delete(made.id))).id == made.id


async def beta_models(client: Any) -> None:
    assert "starter" in [model.id for model in await collect(client.beta.models.list())]
    assert (await wait(client.beta.models.retrieve("starter"))).id == "starter"


async def files(client: Any) -> str:
    return await rejected(lambda: client.beta.files.upload(file=("a.txt", b"a")), 400, "purpose")


async def skills(client: Any) -> str:
    return await rejected(lambda: client.beta.skills.list(), 404, "/v1/skills")


MESSAGE, BATCHES = "POST /v1/messages", "/v1/messages/batches"
TURNS = [*ASKED, {"role": "assistant", "content": [THOUGHT, SAID]}]
FEATURES = [
    Feature(MESSAGE, "create", message, message_stream),
    Feature(MESSAGE, "stream", None, message_helper),
    Feature(MESSAGE, "create, bash_20250124", typed_tool),
    Feature(MESSAGE, "create, max_tokens, stop_sequences", message_limits),
    Feature(MESSAGE, "create or stream, tools", message_tools, message_tools_stream),
    Feature(MESSAGE, "parse or stream, output_format", message_parse, message_parse_stream),
    Feature(MESSAGE, "create, thinking", thinking, thinking_stream),
    Feature(MESSAGE, "create, cache_control, metadata", cached),
    Feature(MESSAGE, "with_raw_response.create", message_raw),
    accepted("text block", {"type": "text", "text": "Hello."}),
    accepted("document of text", document(**TEXT)),
    accepted(
        "document of content",
        {"type": "document", "source": {"type": "content", "content": [SAID]}},
    ),
    accepted("thinking block", turns=TURNS),
    accepted(
        "redacted_thinking block",
        turns=[*ASKED, {"role": "assistant", "content": [REDACTED, SAID]}],
    ),
    Feature(MESSAGE, "create, image block", image, image_stream),
    refused("image block (no vision)", "image", content=[{"type": "image", "source": IMAGE}]),
    refused("document of PDF", "PDF", content=[PDF]),
    refused("document with citations", "citations", content=[CITED]),
    refused("search_result with citations", "citations", content=[CITED_SEARCH]),
    refused("server_tool_use block", "server_tool_use", content=[SERVER_USE]),
    refused(
        *("container_upload block", "container_upload"),
        content=[{"type": "container_upload", "file_id": "file_1"}],
    ),
    refused(
        *("tools, an unknown version of bash", "bash_20990101"),
        tools=[{"type": "bash_20990101", "name": "bash"}],
    ),
    refused("container", "container", container="x"),
    refused("speed: fast", "speed", speed="fast"),
    refused("inference_geo", "inference_geo", inference_geo="us"),
    Feature("POST /v1/messages/count_tokens", "count_tokens", count),
    Feature(
        f"{BATCHES}, {BATCHES}/{{id}}, {BATCHES}/{{id}}/results",
        *("create, retrieve, results, delete", batch),
    ),
    Feature(f"GET {BATCHES}", "list, cursors", batch_list),
    Feature(f"POST {BATCHES}/{{id}}/cancel", "cancel", batch_cancel),
    Feature("GET /v1/models", "list", models),
    Feature("GET /v1/models/{id}", "retrieve", model),
    Feature(MESSAGE, "beta: create or stream, count_tokens", beta, beta_stream),
    Feature(MESSAGE, "beta: tool_runner", beta_runner),
    Feature(BATCHES, "beta: all methods", beta_batch),
    Feature("/v1/models", "beta: list, retrieve", beta_models),
    Feature("/v1/skills", "beta: skills.list", skills),
    Feature("/v1/files", "beta: files.upload", files),
]

if __name__ == "__main__":
    run_routes(FEATURES, make_clients)
