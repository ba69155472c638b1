"""Benchmark of a server with OpenAI's API: streams of /v1/completions, timed by the client."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import httpx

from ostro.core.errors import UsageError
from ostro.entrypoints.bench.figures import Row, Trace, summarize, take, title

# fmt: off
WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "woman",
    "life", "child", "world", "school", "state", "family",
)
# fmt: on
"""Words that most tokenizers encode as one token."""


def random_texts(words: int, count: int, shared: int, seed: int) -> list[str]:
    """Return prompts of random words. Their first `shared` words do not depend on the seed."""
    rng = random.Random(-1)
    common = rng.choices(WORDS, k=shared)
    rng.seed(seed)
    return [" ".join(common + rng.choices(WORDS, k=words - shared)) for _ in range(count)]


def measure(
    url: str,
    *,
    model: str,
    key: str | None,
    prompt: int,
    tokens: int,
    runs: int,
    concurrency: int,
    shared: int = 0,
    prompts: Sequence[str] = (),
) -> Row:
    """Run a warm-up and `runs` runs of `concurrency` requests. Raises UsageError on errors."""

    async def measure_all() -> list[list[Trace]]:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=600) as client:
            return [await once(client, turn) for turn in range(runs + 1)]

    async def once(client: httpx.AsyncClient, turn: int) -> list[Trace]:
        seed = 1000 * concurrency + turn  # a repeated prompt would hit the prefix cache
        texts = take(prompts, concurrency) or random_texts(prompt, concurrency, shared, seed)
        return await asyncio.gather(*(stream(client, model, text, tokens) for text in texts))

    try:
        traces = asyncio.run(measure_all())
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = str(error) or type(error).__name__
        raise UsageError(f"--url {url}: {reason}; check that the server is running") from error
    return summarize(title(prompt, tokens, prompts), traces[1:])


async def stream(
    client: httpx.AsyncClient, model: str, prompt: str | list[int], tokens: int
) -> Trace:
    """Send one request for a text or token ids and record the time of each token."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": tokens + 1,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    trace = Trace(perf_counter(), 0)
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != 200:
            answer = (await response.aread()).decode(errors="replace")
            raise UsageError(f"the server returned status {response.status_code}: {answer[:300]}")
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = parse_event(line[6:])
            if has_token(event):
                trace.times.append(perf_counter())
            if usage := event.get("usage"):
                trace.prompt = usage.get("prompt_tokens", 0)
                details = usage.get("prompt_tokens_details") or {}
                trace.cached = details.get("cached_tokens") or 0
    if not trace.times:
        raise UsageError("the server returned no tokens")
    return trace


def parse_event(data: str) -> dict[str, Any]:
    """Parse an event. Raises UsageError if it is not JSON or contains an error."""
    try:
        event: dict[str, Any] = json.loads(data)
    except ValueError as error:
        raise UsageError(f"the server sent an event that is not JSON: {data[:100]}") from error
    if event.get("error"):
        raise UsageError(f"the server sent an error: {json.dumps(event['error'])[:300]}")
    return event


def has_token(event: dict[str, Any]) -> bool:
    """Whether an event contains a token, and not only the finish reason or the usage."""
    return any(c.get("text") or not c.get("finish_reason") for c in event.get("choices") or [])
