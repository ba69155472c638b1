"""A draft model behind HTTP: the same answers, and the accepted tokens in usage and metrics.

The first request of a server has drafts, whatever they cost: that is not known before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from echo.server import wait_until
from tiny.server import RunningServer, serving

from ostro.core.settings import STARTER, Settings

pytestmark = pytest.mark.process

ASKED: dict[str, Any] = {
    "model": "default",
    "messages": [{"role": "user", "content": "Tell me a story about a cat."}],
    "max_tokens": 40,
}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """The starter model, which also drafts for itself."""
    settings = Settings(
        reference=STARTER,
        speculate=STARTER,
        adapters=("pirate=starter/pirate",),
        dtype="float32",
        deterministic=True,
        threads=1,
    )
    with serving(settings) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as made:
        yield made


def drafts_of(answer: Any) -> tuple[int, int]:
    """The accepted and the rejected drafts of an answer, or of the last chunk of a stream."""
    details = answer.usage.completion_tokens_details
    assert details.accepted_prediction_tokens <= answer.usage.completion_tokens
    return details.accepted_prediction_tokens, details.rejected_prediction_tokens


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"n": 2},
        {"model": "pirate"},
        {"response_format": FORMAT},
        {"logprobs": True, "top_logprobs": 2},
    ],
    ids=["greedy", "choices", "adapter", "grammar", "logprobs"],
)
def test_answers_are_the_same(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    asked = {**ASKED, "temperature": 1.2, "seed": 5, **fields}
    answer = client.chat.completions.create(**asked)
    plain = client.chat.completions.create(**asked, extra_body={"speculate": False})
    assert answer.choices == plain.choices
    assert sum(drafts_of(answer)) > 0 and drafts_of(plain) == (0, 0)


def counters_of(server: RunningServer) -> tuple[dict[str, int], dict[int, int]]:
    """The counters of drafts by name, and the accepted ones by place."""
    text = server.get("/metrics").text
    counters = {
        name: int(float(value))
        for name, value in re.findall(r"^vllm:spec_decode_(\w+)\{.*?\} (\S+)$", text, re.MULTILINE)
        if "per_pos" not in name
    }
    places = {
        int(place): int(float(value))
        for place, value in re.findall(r'per_pos_total\{.*?position="(\d+)"\} (\S+)', text)
    }
    return counters, places


def test_usage_of_a_stream_and_metrics_count_accepted_drafts(
    server: RunningServer, client: openai.OpenAI
) -> None:
    *_, last = client.chat.completions.create(
        **ASKED, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    accepted, rejected = drafts_of(last)
    assert accepted > 0, "the draft model is the model itself"
    wait_until(lambda: counters_of(server)[0]["num_accepted_tokens_total"])  # sent now and then
    counters, places = counters_of(server)
    assert counters["num_accepted_tokens_total"] == accepted == sum(places.values())
    assert counters["num_draft_tokens_total"] == accepted + rejected
    assert places[0] <= counters["num_drafts_total"] <= accepted + rejected
    assert [*places] == [*range(8)]
    assert [*places.values()] == sorted(places.values(), reverse=True)
