"""Mixed traffic: requests of all kinds that a server with a chat model answers."""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Any

from .clients import (
    CHAT,
    COMPLETIONS,
    Outcomes,
    chat,
    encode,
    expect,
    request,
    stream_chat,
)

PAUSE = 0.5
"""Longest pause between two requests of a client in seconds."""


async def send_mixed_requests(url: str, outcomes: Outcomes, end: float) -> None:
    """Send requests of random kinds, with pauses, and begin none after a monotonic time."""
    kinds = (
        stream,
        complete,
        penalize,
        ask_other_apis,
        respond_twice,
        keep_a_file,
        run_batch,
        count_tokens,
        look_around,
    )
    while time.monotonic() < end:
        await random.choice(kinds)(url, outcomes)
        await asyncio.sleep(random.uniform(0, PAUSE))


async def stream(url: str, outcomes: Outcomes) -> None:
    """Read a stream, sampled or greedy, perhaps behind a long prefix that others share."""
    fields: dict[str, Any] = {"temperature": random.choice((0, 0.8)), "seed": random.randrange(9)}
    if random.random() < 0.3:
        shared = {"role": "system", "content": "Answer in one word. " * random.choice((10, 30))}
        fields["messages"] = [shared, *chat(1)["messages"]]
    await stream_chat(url, outcomes, random.choice((5, 50, 200)), **fields)


async def complete(url: str, outcomes: Outcomes) -> None:
    """Complete a text twice, with probabilities and a stop string."""
    body = {"prompt": f"{random.randrange(99)} is", "n": 2, "logprobs": 3, "temperature": 1}
    await expect(url, outcomes, COMPLETIONS, {**body, "max_tokens": 30, "stop": "."})


async def penalize(url: str, outcomes: Outcomes) -> None:
    """Generate with penalties, a bias and DRY."""
    fields = {"frequency_penalty": 0.5, "logit_bias": {"5": -2}, "dry_multiplier": 0.8}
    await expect(url, outcomes, CHAT, chat(60, stream=False, **fields))


async def ask_other_apis(url: str, outcomes: Outcomes) -> None:
    """Chat through the APIs of Anthropic and Ollama."""
    messages = chat(1)["messages"]
    body = {"model": "starter", "max_tokens": 20, "messages": messages, "stream": True}
    await expect(url, outcomes, "/v1/messages", body)
    await expect(url, outcomes, "/api/chat", {"model": "starter", "messages": messages})


async def respond_twice(url: str, outcomes: Outcomes) -> None:
    """Store a response, continue it, and delete both."""
    ids: list[str] = []
    for _ in range(2):
        body = {"input": "Tell me a story.", "max_output_tokens": 20}
        body |= {"previous_response_id": ids[-1]} if ids else {}
        ids.append(json.loads(await expect(url, outcomes, "/v1/responses", body))["id"])
    for id in ids:
        await delete(url, outcomes, f"/v1/responses/{id}")


async def keep_a_file(url: str, outcomes: Outcomes) -> None:
    """Upload a file, read and delete it."""
    id = await upload(url, outcomes, random.randbytes(random.choice((100, 2 << 20))), "user_data")
    await look(url, outcomes, f"/v1/files/{id}/content")
    await delete(url, outcomes, f"/v1/files/{id}")


async def run_batch(url: str, outcomes: Outcomes) -> None:
    """Run a batch and delete its files."""
    body = {"messages": chat(1)["messages"], "max_tokens": 5}
    lines = (
        json.dumps({"custom_id": f"{n}", "method": "POST", "url": CHAT, "body": body})
        for n in range(4)
    )
    file = await upload(url, outcomes, "\n".join(lines).encode(), "batch")
    made = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
    batch = json.loads(await expect(url, outcomes, "/v1/batches", made))
    while batch["status"] not in ("completed", "failed", "expired"):
        await asyncio.sleep(0.5)
        batch = json.loads(await look(url, outcomes, f"/v1/batches/{batch['id']}"))
    if batch["status"] != "completed" or batch["request_counts"]["failed"]:
        outcomes.faults.append(f"batch: {batch}")
    for id in (file, batch["output_file_id"]):
        await delete(url, outcomes, f"/v1/files/{id}")


async def count_tokens(url: str, outcomes: Outcomes) -> None:
    """Encode and decode a text."""
    found = await expect(url, outcomes, "/tokenize", {"prompt": "one two three " * 50})
    await expect(url, outcomes, "/detokenize", {"tokens": json.loads(found)["tokens"]})


async def look_around(url: str, outcomes: Outcomes) -> None:
    """Read the routes of probes and lists."""
    for path in ("/health", "/ready", "/metrics", "/v1/models", "/v1/lora_adapters"):
        await look(url, outcomes, path)


async def look(url: str, outcomes: Outcomes, path: str) -> bytes:
    """Send GET and return the body."""
    async with request(url, encode(path)) as response:
        data = await response.body()
        outcomes.count("GET", response.status, (200,), data)
        return data


async def delete(url: str, outcomes: Outcomes, path: str) -> None:
    """Send DELETE."""
    async with request(url, encode(path, method="DELETE")) as response:
        outcomes.count("DELETE", response.status, (200,), await response.body())


async def upload(url: str, outcomes: Outcomes, data: bytes, purpose: str) -> str:
    """Upload a file and return its id."""
    head = (
        f'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n{purpose}\r\n'
        '--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
    ).encode()
    form = head + data + b"\r\n--b--\r\n"
    sent = encode("/v1/files", form, type="multipart/form-data; boundary=b")
    async with request(url, sent) as response:
        body = await response.body()
        outcomes.count("upload", response.status, (200,), body)
        return str(json.loads(body)["id"])
