"""One request gives the same tokens through every API, in a batch and in Python."""

from __future__ import annotations

import json
import time
from typing import Any

import anthropic
import ollama
import openai
import pytest
from tiny.server import serving

import ostro
from ostro.core.settings import STARTER, Settings

EXACT: dict[str, Any] = {"dtype": "float32", "deterministic": True, "threads": 1}
HI: list[Any] = [{"role": "user", "content": "Tell me a story about a cat."}]
LENGTH = 24
SAMPLING: list[dict[str, Any]] = [{"temperature": 0.0}, {"temperature": 1.0, "seed": 5}]


def batch(client: openai.OpenAI, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
    """The response body of a batch of one request."""
    line = {"custom_id": "a", "method": "POST", "url": endpoint, "body": body}
    file = client.files.create(file=("a.jsonl", json.dumps(line).encode()), purpose="batch")
    made = client.batches.create(
        input_file_id=file.id,
        endpoint=endpoint,  # type: ignore[arg-type]
        completion_window="24h",
    )
    for _ in range(600):
        made = client.batches.retrieve(made.id)
        if made.status == "completed":
            break
        time.sleep(0.1)
    assert made.output_file_id, made
    found: dict[str, Any] = json.loads(client.files.content(made.output_file_id).text)
    body = found["response"]["body"]
    return body


def message_batch(client: anthropic.Anthropic, params: Any) -> str:
    """The answer of a message batch of one request."""
    batches = client.messages.batches
    made = batches.create(requests=[{"custom_id": "a", "params": params}])
    for _ in range(600):
        if batches.retrieve(made.id).processing_status == "ended":
            break
        time.sleep(0.1)
    [found] = batches.results(made.id)
    assert found.result.type == "succeeded", found
    [block] = found.result.message.content
    assert block.type == "text"
    return block.text


def answers(url: str, model: str, sampling: dict[str, Any]) -> dict[str, str]:
    """The answer of each API."""
    found: dict[str, Any] = {}
    fields = {"model": model, "messages": HI, "max_tokens": LENGTH}
    reply = {"model": model, "input": HI, "max_output_tokens": LENGTH, **sampling}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        chat = client.chat.completions.create(**fields, **sampling)
        found["chat"] = chat.choices[0].message.content
        found["batch"] = batch(client, "/v1/chat/completions", {**fields, **sampling})["choices"][
            0
        ]["message"]["content"]
        seed = {"extra_body": {"seed": sampling["seed"]}} if "seed" in sampling else {}
        asked = {name: value for name, value in reply.items() if name != "seed"}
        found["responses"] = client.responses.create(**asked, **seed).output_text
        responded = batch(client, "/v1/responses", reply)
        found["batch of responses"] = responded["output"][0]["content"][0]["text"]
    with anthropic.Anthropic(base_url=url, api_key="none") as client:
        message = client.messages.create(**fields, extra_body=sampling)
        found["anthropic"] = message.content[0].text  # type: ignore[union-attr]
        found["message batch"] = message_batch(client, {**fields, **sampling})
    with ollama.Client(url) as client:
        options = {**sampling, "num_predict": LENGTH}
        found["ollama"] = client.chat(model, HI, options=options).message.content
    return found


@pytest.mark.slow
def test_every_api_gives_the_same_tokens() -> None:
    settings = Settings(reference=STARTER, adapters=("pirate=starter/pirate",), **EXACT)
    said: dict[tuple[str, int], dict[str, str]] = {}
    with serving(settings, store="memory") as server:
        for model in ("starter", "pirate"):
            for i, sampling in enumerate(SAMPLING):
                said[model, i] = answers(server.url, model, sampling)
    with ostro.load(**EXACT) as local:
        assert isinstance(local, ostro.LocalModel)
        local.load_adapter("pirate", "starter/pirate")
        for (model, i), found in said.items():
            adapters = ["pirate"] if model == "pirate" else []
            text = local.generate(HI, adapters=adapters, max_tokens=LENGTH, **SAMPLING[i])
            assert {*found.values()} == {text}, (model, SAMPLING[i], found, text)
    assert len({found["chat"] for found in said.values()}) >= 3, "adapters or seeds change nothing"
