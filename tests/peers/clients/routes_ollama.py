"""Every route of Ollama's API with the Ollama client.

python routes_ollama.py http://127.0.0.1:8000 [FEATURE ...]
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import ollama
from features import REPORT, SENTENCE, TOOL, Person
from routes import KEY, PIXEL, Feature, collect, rejected, run_routes, wait

QUESTION = "What is the capital of France?"
MESSAGES = [{"role": "user", "content": QUESTION}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
FIELDS: dict[str, Any] = {"model": "starter", "options": {"temperature": 0, "num_predict": 200}}


def make_clients(url: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"headers": {"Authorization": f"Bearer {KEY}"}, "timeout": 120}
    return {"sync": ollama.Client(url, **fields), "async": ollama.AsyncClient(url, **fields)}


async def chat(client: Any) -> None:
    made = await wait(client.chat(messages=MESSAGES, **FIELDS))
    assert isinstance(made, ollama.ChatResponse) and made.message.role == "assistant"
    assert "Paris" in made.message.content and made.done and made.done_reason == "stop"
    assert made.prompt_eval_count > 5 and made.eval_count > 1 and made.total_duration > 0


async def chat_stream(client: Any) -> None:
    parts = await collect(client.chat(messages=MESSAGES, stream=True, **FIELDS))
    assert all(isinstance(part, ollama.ChatResponse) for part in parts)
    assert "Paris" in "".join(part.message.content for part in parts)
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]


async def chat_logprobs(client: Any) -> None:
    made = await wait(client.chat(messages=MESSAGES, logprobs=True, top_logprobs=2, **FIELDS))
    assert "".join(x.token for x in made.logprobs) == made.message.content
    assert all(len(x.top_logprobs) == 2 for x in made.logprobs)


async def chat_tools(client: Any) -> None:
    made = await wait(client.chat(messages=WEATHER, tools=[TOOL], **FIELDS))
    (call,) = made.message.tool_calls
    assert call.function.name == "get_weather" and call.function.arguments == {"city": "Paris"}
    result = {"role": "tool", "content": REPORT, "tool_name": "get_weather"}
    made = await wait(
        client.chat(messages=[*WEATHER, made.message, result], tools=[TOOL], **FIELDS)
    )
    assert "21" in made.message.content


async def chat_tools_stream(client: Any) -> None:
    parts = await collect(client.chat(messages=WEATHER, tools=[TOOL], stream=True, **FIELDS))
    (call,) = [call for part in parts for call in part.message.tool_calls or []]
    assert call.function.arguments == {"city": "Paris"}


async def chat_format(client: Any) -> None:
    messages = [{"role": "user", "content": SENTENCE}]
    schema = Person.model_json_schema()
    made = await wait(client.chat(messages=messages, format=schema, **FIELDS))
    assert Person.model_validate_json(made.message.content) == Person(name="Anna", age=34)
    made = await wait(client.chat(messages=messages, format="json", **FIELDS))
    assert isinstance(json.loads(made.message.content), dict)


async def chat_format_stream(client: Any) -> None:
    messages = [{"role": "user", "content": SENTENCE}]
    schema = Person.model_json_schema()
    parts = await collect(client.chat(messages=messages, format=schema, stream=True, **FIELDS))
    text = "".join(part.message.content for part in parts)
    assert Person.model_validate_json(text) == Person(name="Anna", age=34)


async def chat_thinking(client: Any) -> None:
    made = await wait(client.chat(messages=MESSAGES, think=False, **FIELDS))
    assert made.message.content and not made.message.thinking


async def chat_keep_alive(client: Any) -> None:
    made = await wait(client.chat(model="starter", messages=[], keep_alive="5m"))
    assert made.done_reason == "load" and made.message.content == ""


async def generate(client: Any) -> None:
    made = await wait(client.generate(prompt=QUESTION, system="Be brief.", **FIELDS))
    assert isinstance(made, ollama.GenerateResponse) and made.response and made.done
    assert made.done_reason == "stop" and made.eval_count > 1


async def generate_stream(client: Any) -> None:
    parts = await collect(client.generate(prompt=QUESTION, stream=True, **FIELDS))
    assert "Paris" in "".join(part.response for part in parts)
    assert parts[-1].done and parts[-1].eval_count > 1


async def generate_raw(client: Any) -> None:
    made = await wait(
        client.generate(
            model="starter", prompt="Paris is", raw=True, options={"num_predict": 3, "seed": 1}
        )
    )
    assert made.eval_count <= 3 and made.response


async def embed(client: Any) -> None:
    made = await wait(client.embed(model="starter", input=["a", "b"]))
    assert isinstance(made, ollama.EmbedResponse) and len(made.embeddings) == 2
    assert abs(sum(x * x for x in made.embeddings[0]) - 1) < 1e-3 and made.prompt_eval_count > 1


async def embed_dimensions(client: Any) -> None:
    made = await wait(client.embed(model="starter", input="a", dimensions=8, truncate=True))
    assert [len(vector) for vector in made.embeddings] == [8]


async def embeddings(client: Any) -> None:
    made = await wait(client.embeddings(model="starter", prompt="a"))
    assert isinstance(made, ollama.EmbeddingsResponse) and len(made.embedding) > 8


async def list_models(client: Any) -> None:
    listed = await wait(client.list())
    (model,) = [model for model in listed.models if (model.model or "").startswith("starter")]
    assert model.size > 1000 and model.details.family == "llama" and model.modified_at


async def ps(client: Any) -> None:
    running = await wait(client.ps())
    (model,) = [model for model in running.models if (model.model or "").startswith("starter")]
    assert model.context_length == 1024 and model.expires_at


async def show(client: Any) -> None:
    shown = await wait(client.show("starter"))
    assert isinstance(shown, ollama.ShowResponse) and shown.template and shown.modelinfo
    assert {"completion", "tools", "embedding"} <= {*shown.capabilities}


async def chat_images(client: Any) -> None:
    messages = [{"role": "user", "content": "What is it?", "images": [PIXEL]}]
    made = await wait(client.chat(model="vision", messages=messages, options={"num_predict": 4}))
    assert made.done and made.eval_count > 0 and made.prompt_eval_count > 4


async def absent(client: Any) -> str:
    return await rejected(lambda: client.chat(model="absent", messages=MESSAGES), 404, "absent")


def refused(route: str, name: str, word: str, call: Callable[[Any], Any]) -> Feature:
    async def whole(client: Any) -> str:
        return await rejected(lambda: call(client), 400, word)

    return Feature(route, name, whole)


async def systemone(client: Any) -> str:
    questions: dict[str, Any] = {"a": {"type": "noul", "instructions": "Is it sunny?"}}
    return await rejected(
        lambda: client.systemone(model="starter", state="x", questions=questions),
        *(404, "/v1/systemone"),
    )


CHAT, GENERATE = "POST /api/chat", "POST /api/generate"
FEATURES = [
    Feature(CHAT, "chat", chat, chat_stream),
    Feature(CHAT, "chat, logprobs", chat_logprobs),
    Feature(CHAT, "chat, tools", chat_tools, chat_tools_stream),
    Feature(CHAT, "chat, format", chat_format, chat_format_stream),
    Feature(CHAT, "chat, think: false", chat_thinking),
    Feature(CHAT, "chat, keep_alive", chat_keep_alive),
    Feature(CHAT, "chat, absent model", absent),
    Feature(CHAT, "chat, images", chat_images),
    refused(
        *(CHAT, "chat, images (no vision)", "image"),
        lambda c: c.chat(messages=[{**MESSAGES[0], "images": [PIXEL]}], **FIELDS),
    ),
    Feature(GENERATE, "generate", generate, generate_stream),
    Feature(GENERATE, "generate, raw", generate_raw),
    refused(
        *(GENERATE, "generate, suffix (no tokens for it)", "suffix"),
        lambda c: c.generate(prompt="a", suffix="b", **FIELDS),
    ),
    refused(
        *(GENERATE, "generate, template", "template"),
        lambda c: c.generate(prompt="a", template="{{ .Prompt }}", **FIELDS),
    ),
    refused(
        *(GENERATE, "generate, context", "context"),
        lambda c: c.generate(prompt="a", context=[1], **FIELDS),
    ),
    Feature("POST /api/embed", "embed", embed),
    Feature("POST /api/embed", "embed, dimensions", embed_dimensions),
    Feature("POST /api/embeddings", "embeddings", embeddings),
    Feature("GET /api/tags", "list", list_models),
    Feature("GET /api/ps", "ps", ps),
    Feature("POST /api/show", "show", show),
    refused("POST /api/pull", "pull", "pull", lambda c: c.pull("a")),
    refused("POST /api/pull", "pull, stream", "pull", lambda c: c.pull("a", stream=True)),
    refused("POST /api/push", "push", "push", lambda c: c.push("a")),
    refused("POST /api/create", "create", "create", lambda c: c.create("a", from_="starter")),
    refused("POST /api/copy", "copy", "copy", lambda c: c.copy("starter", "a")),
    refused("DELETE /api/delete", "delete", "delete", lambda c: c.delete("starter")),
    refused("POST /api/blobs/{digest}", "create_blob", "upload", lambda c: c.create_blob(__file__)),
    *(
        [Feature("POST /v1/systemone", "systemone", systemone)]
        if hasattr(ollama.Client, "systemone")
        else []
    ),
]

if __name__ == "__main__":
    run_routes(FEATURES, make_clients)
