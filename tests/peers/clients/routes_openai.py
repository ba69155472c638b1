"""The routes of chats, completions, responses, embeddings and models with the OpenAI client.

python routes_openai.py http://127.0.0.1:8000 [FEATURE ...]
"""

from __future__ import annotations

import json
import re
from typing import Any

import openai
from features import FUNCTION, REPORT, SENTENCE, TOOL, GetWeather, Person
from routes import KEY, PIXEL, Feature, collect, finish, rejected, run_routes, until, wait

QUESTION = "What is the capital of France?"
MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]
SENTENCES: list[Any] = [{"role": "user", "content": SENTENCE}]
WEATHER: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
CHAT: dict[str, Any] = {"model": "default", "temperature": 0, "max_tokens": 200}
RESPONSE: dict[str, Any] = {"model": "default", "temperature": 0, "max_output_tokens": 200}
FLAT: dict[str, Any] = {"type": "function", **FUNCTION}
LOGPROBS: list[Any] = ["message.output_text.logprobs"]


def make_clients(url: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": KEY}
    fields |= {"timeout": 120, "max_retries": 0, "_strict_response_validation": True}
    return {"sync": openai.OpenAI(**fields), "async": openai.AsyncOpenAI(**fields)}


def lax(client: Any) -> Any:
    """The client without validation, for what its types reject although OpenAI sends it."""
    return client.copy(_extra_kwargs={"_strict_response_validation": False})


def text_of(chunks: list[Any]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


# Chat completions


async def chat(client: Any) -> None:
    made = await wait(client.chat.completions.create(messages=MESSAGES, **CHAT))
    assert made.object == "chat.completion" and made.choices[0].message.role == "assistant"
    assert "Paris" in made.choices[0].message.content and made.choices[0].finish_reason == "stop"
    usage = made.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > 10


async def chat_stream(client: Any) -> None:
    options = {"include_usage": True}
    chunks = await collect(
        client.chat.completions.create(
            messages=MESSAGES, stream=True, stream_options=options, **CHAT
        )
    )
    assert "Paris" in text_of(chunks) and len(chunks) > 2
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[-2].choices[0].finish_reason == "stop" and chunks[-1].usage.total_tokens > 10


async def chat_logprobs(client: Any) -> None:
    made = await wait(
        client.chat.completions.create(
            messages=MESSAGES, n=2, logprobs=True, top_logprobs=3, **CHAT
        )
    )
    assert [choice.index for choice in made.choices] == [0, 1]
    for choice in made.choices:
        assert "".join(x.token for x in choice.logprobs.content) == choice.message.content
        assert all(len(x.top_logprobs) == 3 for x in choice.logprobs.content)


async def chat_logprobs_stream(client: Any) -> None:
    chunks = await collect(
        client.chat.completions.create(
            messages=MESSAGES, n=2, logprobs=True, top_logprobs=3, stream=True, **CHAT
        )
    )
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert {choice.index for choice in choices} == {0, 1}
    tokens = [x for choice in choices if choice.logprobs for x in choice.logprobs.content]
    assert tokens and all(len(x.top_logprobs) == 3 for x in tokens)


async def chat_limits(client: Any) -> None:
    fields = {**CHAT, "max_tokens": None, "max_completion_tokens": 2, "seed": 1}
    made = await wait(client.chat.completions.create(messages=MESSAGES, **fields))
    assert made.choices[0].finish_reason == "length" and made.usage.completion_tokens == 2
    made = await wait(client.chat.completions.create(messages=MESSAGES, stop=["Paris"], **CHAT))
    assert made.choices[0].finish_reason == "stop"
    assert "Paris" not in made.choices[0].message.content


async def chat_tools(client: Any) -> None:
    tools = {**CHAT, "tools": [TOOL]}
    made = await wait(client.chat.completions.create(messages=WEATHER, **tools))
    message = made.choices[0].message
    (call,) = message.tool_calls
    assert made.choices[0].finish_reason == "tool_calls"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    turns = [*WEATHER, message, {"role": "tool", "tool_call_id": call.id, "content": REPORT}]
    made = await wait(client.chat.completions.create(messages=turns, **tools))
    assert "21" in made.choices[0].message.content


async def chat_custom(client: Any) -> None:
    form = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[ab]{2,4}"}}
    tool = {"type": "custom", "custom": {"name": "note", "format": form}}
    tools = {**CHAT, "tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    made = await wait(client.chat.completions.create(messages=WEATHER, **tools))
    (call,) = made.choices[0].message.tool_calls
    assert call.type == "custom" and re.fullmatch("[ab]{2,4}", call.custom.input)


async def chat_tools_stream(client: Any) -> None:
    chunks = await collect(
        client.chat.completions.create(messages=WEATHER, tools=[TOOL], stream=True, **CHAT)
    )
    deltas = [x for chunk in chunks for x in chunk.choices[0].delta.tool_calls or []]
    arguments = "".join(delta.function.arguments or "" for delta in deltas)
    assert deltas[0].id and deltas[0].function.name == "get_weather"
    assert json.loads(arguments) == {"city": "Paris"}
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


async def chat_parse(client: Any) -> None:
    made = await wait(
        client.chat.completions.parse(messages=SENTENCES, response_format=Person, **CHAT)
    )
    assert made.choices[0].message.parsed == Person(name="Anna", age=34)


async def chat_helper(client: Any) -> None:
    manager = client.chat.completions.stream(messages=SENTENCES, response_format=Person, **CHAT)
    events, final = await finish(manager, "get_final_completion")
    assert {"chunk", "content.delta", "content.done"} <= {event.type for event in events}
    assert final.choices[0].message.parsed == Person(name="Anna", age=34)


async def chat_tool_parse(client: Any) -> None:
    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")
    made = await wait(
        client.chat.completions.parse(
            messages=WEATHER, tools=[tool], tool_choice="required", **CHAT
        )
    )
    (call,) = made.choices[0].message.tool_calls
    assert call.function.parsed_arguments == GetWeather(city="Paris")


async def chat_tool_helper(client: Any) -> None:
    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")
    manager = client.chat.completions.stream(
        messages=WEATHER, tools=[tool], tool_choice="required", **CHAT
    )
    events, final = await finish(manager, "get_final_completion")
    assert "tool_calls.function.arguments.done" in {event.type for event in events}
    assert final.choices[0].message.tool_calls[0].function.parsed_arguments.city == "Paris"


async def chat_json(client: Any) -> None:
    made = await wait(
        client.chat.completions.create(
            messages=SENTENCES, response_format={"type": "json_object"}, **CHAT
        )
    )
    assert isinstance(json.loads(made.choices[0].message.content), dict)


async def chat_raw(client: Any) -> None:
    raw = await wait(client.chat.completions.with_raw_response.create(messages=MESSAGES, **CHAT))
    assert raw.status_code == 200 and raw.headers["x-request-id"]
    assert "Paris" in (await wait(raw.parse())).choices[0].message.content


async def chat_text_file(client: Any) -> None:
    file = {"filename": "a.txt", "file_data": "data:text/plain;base64,UGFyaXMgaXMgYSBjaXR5Lg=="}
    parts = [{"type": "file", "file": file}, {"type": "text", "text": QUESTION}]
    messages = [{"role": "user", "content": parts}]
    made = await wait(client.chat.completions.create(messages=messages, **CHAT))
    assert made.choices[0].message.content and made.usage.prompt_tokens > 20


async def chat_image(client: Any) -> str:
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    messages = [{"role": "user", "content": [part]}]
    return await rejected(
        lambda: client.chat.completions.create(messages=messages, **CHAT), 400, "image"
    )


async def chat_audio(client: Any) -> str:
    part = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    messages = [{"role": "user", "content": [part]}]
    return await rejected(
        lambda: client.chat.completions.create(messages=messages, **CHAT), 400, "audio"
    )


def chat_without(field: str, value: Any) -> Feature:
    """A field of chat completions that the server rejects by name."""

    async def whole(client: Any) -> str:
        call = client.chat.completions.create
        return await rejected(lambda: call(messages=MESSAGES, **CHAT, **{field: value}), 400, field)

    return Feature("POST /v1/chat/completions", f"create, {field}", whole)


# Completions


async def completion(client: Any) -> None:
    made = await wait(
        client.completions.create(
            model="default", prompt=["Paris is", "Rome is"], max_tokens=4, n=2, logprobs=2
        )
    )
    assert made.object == "text_completion" and len(made.choices) == 4
    assert all(x.logprobs.tokens for x in made.choices)
    assert made.usage.completion_tokens >= sum(len(x.logprobs.tokens) for x in made.choices)


async def completion_stream(client: Any) -> None:
    chunks = await collect(
        lax(client).completions.create(
            model="default", prompt="Paris is", max_tokens=4, stream=True
        )
    )
    assert chunks[-1].choices[0].finish_reason == "length"
    assert "".join(chunk.choices[0].text for chunk in chunks)


async def completion_echo(client: Any) -> None:
    made = await wait(
        client.completions.create(
            model="default", prompt="Paris is", max_tokens=4, echo=True, best_of=2
        )
    )
    assert made.choices[0].text.startswith("Paris is")


async def completion_suffix(client: Any) -> str:
    return await rejected(
        lambda: client.completions.create(model="default", prompt="a", suffix="b"), 400, "suffix"
    )


# Responses


async def response(client: Any) -> None:
    made = await wait(client.responses.create(input=QUESTION, include=LOGPROBS, **RESPONSE))
    assert made.status == "completed" and "Paris" in made.output_text
    assert made.output[0].content[0].logprobs and made.usage.total_tokens > 10


async def response_stream(client: Any) -> None:
    events = await collect(client.responses.create(input=QUESTION, stream=True, **RESPONSE))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created" and events[-1].type == "response.completed"
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == events[-1].response.output_text and "Paris" in "".join(deltas)


async def response_tools(client: Any) -> None:
    made = await wait(client.responses.create(input=WEATHER, tools=[FLAT], **RESPONSE))
    (call,) = (item for item in made.output if item.type == "function_call")
    assert json.loads(call.arguments) == {"city": "Paris"}
    output = {"type": "function_call_output", "call_id": call.call_id, "output": REPORT}
    made = await wait(
        client.responses.create(
            input=[output], previous_response_id=made.id, tools=[FLAT], **RESPONSE
        )
    )
    assert "21" in made.output_text and made.previous_response_id


async def response_tools_stream(client: Any) -> None:
    events = await collect(
        client.responses.create(input=WEATHER, tools=[FLAT], stream=True, **RESPONSE)
    )
    (done,) = (x for x in events if x.type == "response.function_call_arguments.done")
    assert done.name == "get_weather" and json.loads(done.arguments) == {"city": "Paris"}


async def response_shell(client: Any) -> None:
    tool = {"type": "local_shell"}
    made = await wait(
        client.responses.create(input="a", tools=[tool], tool_choice="required", **RESPONSE)
    )
    call = made.output[-1]
    assert call.type == "local_shell_call" and call.action.type == "exec"
    output = {"type": "local_shell_call_output", "id": call.call_id, "output": "b"}
    made = await wait(
        client.responses.create(input=[output], previous_response_id=made.id, **RESPONSE)
    )
    assert made.output_text


async def response_parse(client: Any) -> None:
    made = await wait(client.responses.parse(input=SENTENCE, text_format=Person, **RESPONSE))
    assert made.output_parsed == Person(name="Anna", age=34)


async def response_helper(client: Any) -> None:
    manager = client.responses.stream(input=SENTENCE, text_format=Person, **RESPONSE)
    events, final = await finish(manager, "get_final_response")
    assert "response.output_text.delta" in {event.type for event in events}
    assert final.output_parsed == Person(name="Anna", age=34)


async def response_retrieve(client: Any) -> None:
    made = await wait(client.responses.create(input=QUESTION, **RESPONSE))
    stored = await wait(client.responses.retrieve(made.id))
    assert stored.output_text == made.output_text and stored.status == "completed"
    assert stored.usage == made.usage


async def response_resume(client: Any) -> None:
    events = await collect(client.responses.create(input=QUESTION, stream=True, **RESPONSE))
    identifier = events[0].response.id
    rest = await collect(client.responses.retrieve(identifier, stream=True, starting_after=3))
    assert rest == events[4:] and rest[-1].type == "response.completed"


async def response_background(client: Any) -> None:
    made = await wait(client.responses.create(input=QUESTION, background=True, **RESPONSE))
    assert made.status == "queued" and made.background
    done = await until(
        lambda: client.responses.retrieve(made.id), lambda x: x.status == "completed"
    )
    assert "Paris" in done.output_text


async def response_background_stream(client: Any) -> None:
    events = await collect(
        client.responses.create(input=QUESTION, background=True, stream=True, **RESPONSE)
    )
    assert events[-1].type == "response.completed" and events[-1].response.background


async def response_cancel(client: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "minLength": 4000}}}
    form = {"type": "json_schema", "name": "long", "schema": {**schema, "required": ["a"]}}
    fields = {"model": "default", "max_output_tokens": 900, "text": {"format": form}}
    made = await wait(client.responses.create(input=QUESTION, background=True, **fields))
    assert (await wait(client.responses.cancel(made.id))).status == "cancelled"
    assert (await wait(client.responses.retrieve(made.id))).status == "cancelled"


async def response_delete(client: Any) -> str:
    made = await wait(client.responses.create(input=QUESTION, **RESPONSE))
    assert await wait(client.responses.delete(made.id)) is None
    await rejected(lambda: client.responses.retrieve(made.id), 404, made.id)


async def response_items(client: Any) -> None:
    inputs: list[Any] = [{"role": "user", "content": x} for x in ("Hi", "Where is Rome?", "Bye")]
    made = await wait(client.responses.create(input=inputs, **RESPONSE))
    items = await collect(client.responses.input_items.list(made.id, limit=2, order="asc"))
    assert [item.content[0].text for item in items] == ["Hi", "Where is Rome?", "Bye"]


async def response_count(client: Any) -> None:
    count = await wait(client.responses.input_tokens.count(model="default", input=QUESTION))
    made = await wait(client.responses.create(input=QUESTION, **RESPONSE))
    assert count.input_tokens == made.usage.input_tokens


async def response_previous(client: Any) -> None:
    first = await wait(client.responses.create(input="My name is Anna.", **RESPONSE))
    made = await wait(
        client.responses.create(input=QUESTION, previous_response_id=first.id, **RESPONSE)
    )
    assert made.previous_response_id == first.id
    assert made.usage.input_tokens > first.usage.total_tokens


async def response_compact(client: Any) -> str:
    return await rejected(
        lambda: client.responses.compact(model="default", input=QUESTION), 400, "compact"
    )


async def response_beta(client: Any) -> None:
    made = await wait(client.beta.responses.create(input=QUESTION, **RESPONSE))
    assert "Paris" in made.output[0].content[0].text
    assert (await wait(client.beta.responses.retrieve(made.id))).id == made.id


async def response_beta_stream(client: Any) -> None:
    events = await collect(client.beta.responses.create(input=QUESTION, stream=True, **RESPONSE))
    assert events[-1].type == "response.completed"


def response_without(field: str, value: Any, *words: str) -> Feature:
    """A field of responses that the server rejects by name."""

    async def whole(client: Any) -> str:
        call = client.responses.create
        fields = {**RESPONSE, field: value}
        return await rejected(lambda: call(input=QUESTION, **fields), 400, *(words or (field,)))

    name = f"create, {', '.join([field, *words])}"
    return Feature("POST /v1/responses", name, whole)


# Embeddings and models


async def embeddings(client: Any) -> None:
    made = await wait(
        client.embeddings.create(model="default", input=["a", "b"], encoding_format="float")
    )
    assert [item.index for item in made.data] == [0, 1] and made.usage.prompt_tokens > 1
    assert all(isinstance(x, float) for x in made.data[0].embedding)


async def embeddings_base64(client: Any) -> None:
    made = await wait(lax(client).embeddings.create(model="default", input="a"))
    floats = await wait(
        client.embeddings.create(model="default", input="a", encoding_format="float")
    )
    pairs = zip(made.data[0].embedding, floats.data[0].embedding, strict=True)
    assert all(abs(a - b) < 1e-6 for a, b in pairs)


async def embeddings_tokens(client: Any) -> None:
    made = await wait(
        client.embeddings.create(model="default", input=[[1, 2], [3]], encoding_format="float")
    )
    assert len(made.data) == 2 and made.usage.prompt_tokens >= 3


async def models(client: Any) -> None:
    assert "starter" in [model.id for model in await collect(client.models.list())]


async def model(client: Any) -> None:
    found = await wait(client.models.retrieve("starter"))
    assert found.id == "starter" and found.object == "model" and found.created > 0
    await rejected(lambda: client.models.retrieve("absent"), 404, "absent")


CHATS, COMPLETIONS, RESPONSES = (
    *("POST /v1/chat/completions", "POST /v1/completions", "POST /v1/responses"),
)
ONE = "/v1/responses/{id}"
FEATURES = [
    Feature(CHATS, "create", chat, chat_stream),
    Feature(CHATS, "create, n, logprobs", chat_logprobs, chat_logprobs_stream),
    Feature(CHATS, "create, max_completion_tokens, stop", chat_limits),
    Feature(CHATS, "create, tools", chat_tools, chat_tools_stream),
    Feature(CHATS, "create, custom tool with a format", chat_custom),
    Feature(CHATS, "parse or stream, response_format", chat_parse, chat_helper),
    Feature(CHATS, "parse or stream, tools", chat_tool_parse, chat_tool_helper),
    Feature(CHATS, "create, json_object", chat_json),
    Feature(CHATS, "with_raw_response.create", chat_raw),
    Feature(CHATS, "create, file of text", chat_text_file),
    Feature(CHATS, "create, image_url (no vision)", chat_image),
    Feature(CHATS, "create, input_audio (no audio)", chat_audio),
    chat_without("modalities", ["text", "audio"]),
    chat_without("functions", [FUNCTION]),
    chat_without("audio", {"voice": "alloy", "format": "wav"}),
    chat_without("web_search_options", {}),
    chat_without("prediction", {"type": "content", "content": "a"}),
    Feature(COMPLETIONS, "create, n, logprobs *", completion, completion_stream),
    Feature(COMPLETIONS, "create, echo, best_of", completion_echo),
    Feature(COMPLETIONS, "create, suffix (no tokens for it)", completion_suffix),
    Feature(RESPONSES, "create", response, response_stream),
    Feature(RESPONSES, "create, tools", response_tools, response_tools_stream),
    Feature(RESPONSES, "parse or stream, text_format", response_parse, response_helper),
    Feature(RESPONSES, "create, previous_response_id", response_previous),
    Feature(RESPONSES, "create, background", response_background, response_background_stream),
    Feature(RESPONSES, "beta.responses.create", response_beta, response_beta_stream),
    Feature(RESPONSES, "create, local_shell", response_shell),
    response_without("prompt", {"id": "pmpt_1"}),
    response_without("context_management", [{"type": "compaction"}]),
    Feature(f"GET {ONE}", "retrieve, starting_after", response_retrieve, response_resume),
    Feature(f"POST {ONE}/cancel", "cancel", response_cancel),
    Feature(f"DELETE {ONE}", "delete", response_delete),
    Feature(f"GET {ONE}/input_items", "input_items.list", response_items),
    Feature(f"{RESPONSES}/input_tokens", "input_tokens.count", response_count),
    Feature(f"{RESPONSES}/compact", "compact", response_compact),
    Feature("POST /v1/embeddings", "create, float", embeddings),
    Feature("POST /v1/embeddings", "create, base64 *", embeddings_base64),
    Feature("POST /v1/embeddings", "create, token ids", embeddings_tokens),
    Feature("GET /v1/models", "list", models),
    Feature("GET /v1/models/{id}", "retrieve", model),
]

if __name__ == "__main__":
    run_routes(FEATURES, make_clients)
