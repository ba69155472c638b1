"""The routes that no vendor's client has, and the forms of Jina and vLLM, with httpx.

python routes_http.py http://127.0.0.1:8000 [FEATURE ...]

The server has the models "ranker", "judge" (three labels) and "speaker" beside the starter model,
and the keys `KEY` and `ADMIN`.
"""

from __future__ import annotations

from typing import Any

import httpx
from routes import ADMIN, KEY, Feature, rejected, run_routes, wait

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
RANK: dict[str, Any] = {"model": "ranker", "query": "hello", "documents": ["a", "hello world"]}


def make_clients(url: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"base_url": url, "timeout": 120, "trust_env": False}
    fields["headers"] = {"Authorization": f"Bearer {KEY}"}
    return {"sync": httpx.Client(**fields), "async": httpx.AsyncClient(**fields)}


class RefusedError(Exception):
    """A response with an error."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__(response.text)
        self.status_code, self.body = response.status_code, response.json()


async def send(client: Any, method: str, path: str, **fields: Any) -> Any:
    """The response. Raises RefusedError for an error."""
    response = await wait(client.request(method, path, **fields))
    if response.is_error:
        raise RefusedError(response)
    return response


async def get(client: Any, path: str, key: str = KEY) -> Any:
    headers = {"Authorization": f"Bearer {key}"}
    return (await send(client, "GET", path, headers=headers)).json()


async def post(client: Any, path: str, key: str = KEY, **body: Any) -> Any:
    headers = {"Authorization": f"Bearer {key}"}
    return (await send(client, "POST", path, json=body, headers=headers)).json()


# Ranking and text, as at Jina and in vLLM


async def rerank(client: Any) -> None:
    for path in ("/v1/rerank", "/rerank"):
        made = await post(client, path, **RANK, top_n=1)
        assert made["model"] == "ranker" and made["usage"]["total_tokens"] > 2
        (best,) = made["results"]
        assert best["document"] == {"text": RANK["documents"][best["index"]]}
        assert isinstance(best["relevance_score"], float)


async def score(client: Any) -> None:
    for path in ("/v1/score", "/score"):
        made = await post(client, path, model="ranker", text_1="hello", text_2=["a", "hello"])
        assert [x["object"] for x in made["data"]] == ["score"] * 2 and made["usage"]


async def classify(client: Any) -> None:
    for path in ("/v1/classify", "/classify"):
        made = await post(client, path, model="judge", input=["a", "hello"])
        assert [len(x["probs"]) for x in made["data"]] == [3, 3]
        assert abs(sum(made["data"][0]["probs"]) - 1) < 1e-3 and made["data"][0]["label"]


async def pooling(client: Any) -> None:
    made = await post(client, "/pooling", model="starter", input="a")
    assert len(made["data"][0]["data"]) > 8 and made["object"] == "list"
    made = await post(client, "/pooling", model="judge", input="a", task="classify")
    assert len(made["data"][0]["data"]) == 3


async def pooling_task(client: Any) -> str:
    body = {"model": "starter", "input": "a", "task": "token_embed"}
    return await rejected(lambda: post(client, "/pooling", **body), 400, "task")


async def tokens(client: Any) -> None:
    made = await post(client, "/tokenize", prompt="Paris is a city.", return_token_strs=True)
    assert made["count"] == len(made["tokens"]) == len(made["token_strs"]) > 2
    back = await post(client, "/detokenize", tokens=made["tokens"])
    assert back["prompt"] == "Paris is a city."


async def template(client: Any) -> None:
    prompt = (await post(client, "/apply-template", messages=MESSAGES))["prompt"]
    made = await post(client, "/tokenize", messages=MESSAGES)
    counted = await post(client, "/v1/chat/completions/input_tokens", messages=MESSAGES)
    assert MESSAGES[0]["content"] in prompt and counted["input_tokens"] == made["count"]


async def voices(client: Any) -> None:
    listed = await get(client, "/v1/audio/voices?model=speaker")
    assert "S1" in str(listed)


async def voices_other(client: Any) -> str:
    return await rejected(lambda: get(client, "/v1/audio/voices?model=starter"), 400, "not speak")


# Models and adapters


async def load(client: Any) -> None:
    made = await post(client, "/v1/models/unload", ADMIN, model="judge")
    assert made["state"] == "unloaded"
    assert (await post(client, "/v1/models/load", ADMIN, model="judge"))["state"] == "loaded"
    assert (await post(client, "/v1/models/reload", ADMIN, model="judge"))["state"] == "loaded"
    status = await get(client, "/v1/models/judge/status", ADMIN)
    assert status["state"] == "loaded" and status["weight_bytes"] > 0


async def load_key(client: Any) -> str:
    return await rejected(
        lambda: post(client, "/v1/models/unload", model="judge"), 403, "--admin-key"
    )


async def requantize(client: Any) -> None:
    made = await post(client, "/v1/models/judge/requantize", ADMIN, quant="q8_0")
    assert made["state"] == "loaded" and "q8_0" in str(made)


async def isq(client: Any) -> str:
    return await rejected(lambda: post(client, "/re_isq", ADMIN, ggml_type="Q99"), 400, "Q99")


async def adapters(client: Any) -> None:
    assert await get(client, "/v1/lora_adapters", ADMIN) == {"data": [], "object": "list"}


async def adapter_load(client: Any) -> str:
    body = {"lora_name": "a", "lora_path": "a"}
    await rejected(lambda: post(client, "/v1/unload_lora_adapter", ADMIN, lora_name="a"), 404, "a")
    return await rejected(
        lambda: post(client, "/v1/load_lora_adapter", ADMIN, **body), 404, "--adapter-root"
    )


# The server


async def health(client: Any) -> None:
    assert (await get(client, "/health"))["status"] == "ok"
    assert (await get(client, "/ready"))["status"] == "ready"
    assert (await get(client, "/version"))["version"]
    assert (await get(client, "/load"))["queue_limit"] > 0
    assert (await get(client, "/api/version"))["version"]
    assert (await send(client, "GET", "/")).text == "Ollama is running"


async def documents(client: Any) -> None:
    assert "/v1/responses" in (await get(client, "/openapi.json"))["paths"]
    assert "<html" in (await send(client, "GET", "/docs")).text
    assert "# TYPE" in (await send(client, "GET", "/metrics")).text


FEATURES = [
    Feature("POST /v1/rerank, /rerank", "Jina: query, documents, top_n", rerank),
    Feature("POST /v1/score, /score", "vLLM: text_1, text_2", score),
    Feature("POST /v1/classify, /classify", "vLLM: input", classify),
    Feature("POST /pooling", "vLLM: embed, classify", pooling),
    Feature("POST /pooling", "vLLM: token_embed", pooling_task),
    Feature("POST /tokenize, /detokenize", "vLLM: prompt, tokens", tokens),
    Feature("POST /apply-template, /v1/chat/completions/input_tokens", "messages", template),
    Feature("GET /v1/audio/voices", "a speech model", voices),
    Feature("GET /v1/audio/voices", "a text model", voices_other),
    Feature(
        "/v1/models/load, /v1/models/unload, /v1/models/reload, /v1/models/{id}/status",
        *("admin key", load),
    ),
    Feature("POST /v1/models/unload", "other key", load_key),
    Feature("POST /v1/models/{id}/requantize", "quant", requantize),
    Feature("POST /re_isq", "mistral.rs: unknown ggml_type", isq),
    Feature("GET /v1/lora_adapters", "admin key", adapters),
    Feature(
        "POST /v1/load_lora_adapter, /v1/unload_lora_adapter", "no --adapter-root", adapter_load
    ),
    Feature("GET /health, /ready, /version, /load, /api/version, /", "no body", health),
    Feature("GET /openapi.json, /docs, /metrics", "no body", documents),
]

if __name__ == "__main__":
    run_routes(FEATURES, make_clients)
