"""Measure any OpenAI server: streams of /v1/completions, timed where the client stands."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import httpx

from ostro.core.errors import UsageError
from ostro.entrypoints.bench.figures import Row, Trace, summed, take, title

WORDS = "time year people way day man thing woman life child world school state family".split()


def random_texts(words: int, count: int, shared: int, seed: int) -> list[str]:
    """Prompts of common words, about a token each, that begin with the same `shared` words."""
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
    """One warm-up, then `runs` runs of `concurrency` requests at once. Raises UsageError."""

    async def whole() -> list[list[Trace]]:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=600) as client:
            return [await once(client, turn) for turn in range(runs + 1)]

    async def once(client: httpx.AsyncClient, turn: int) -> list[Trace]:
        seed = 1000 * concurrency + turn  # no prompt is met again: it would be in a cache
        texts = take(prompts, concurrency) or random_texts(prompt, concurrency, shared, seed)
        return await asyncio.gather(*(stream(client, model, text, tokens) for text in texts))

    try:
        traces = asyncio.run(whole())
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = str(error) or type(error).__name__
        raise UsageError(f"--url {url}: {reason}; does a server listen there?") from error
    return summed(title(prompt, tokens, prompts), traces[1:])


async def stream(client: httpx.AsyncClient, model: str, text: str, tokens: int) -> Trace:
    """Send one request and note when each of its pieces comes."""
    body = {
        "model": model,
        "prompt": text,
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
            raise UsageError(f"the server answers {response.status_code}: {answer[:300]}")
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = parsed(line[6:])
            if carries_token(event):
                trace.times.append(perf_counter())
            if usage := event.get("usage"):
                trace.prompt = usage.get("prompt_tokens", 0)
                details = usage.get("prompt_tokens_details") or {}
                trace.cached = details.get("cached_tokens") or 0
    if not trace.times:
        raise UsageError("the server answered with no token at all")
    return trace


def parsed(data: str) -> dict[str, Any]:
    """An event. Raises UsageError where it is not JSON, or the news of an error."""
    try:
        event: dict[str, Any] = json.loads(data)
    except ValueError as error:
        raise UsageError(f"the server sends what is no JSON: {data[:100]}") from error
    if event.get("error"):
        raise UsageError(f"the server breaks off: {json.dumps(event['error'])[:300]}")
    return event


def carries_token(event: dict[str, Any]) -> bool:
    """Whether an event is more than the news that the answer has ended, or its usage."""
    return any(c.get("text") or not c.get("finish_reason") for c in event.get("choices") or [])
