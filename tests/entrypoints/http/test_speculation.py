"""A draft model behind HTTP: the same answers, and the accepted tokens in usage and metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from tiny.server import RunningServer, serving

from ostro.core.records import STARTER, Settings

pytestmark = pytest.mark.process

ASKED: dict[str, Any] = {
    "model": "default",
    "messages": [{"role": "user", "content": "Tell me a story about a cat."}],
    "max_tokens": 40,
}


@pytest.fixture(scope="module")
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


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as made:
        yield made


@pytest.mark.parametrize("rules", [{"temperature": 0}, {"temperature": 1, "seed": 5, "n": 2}])
def test_usage_counts_accepted_and_rejected_drafts(
    client: openai.OpenAI, rules: dict[str, Any]
) -> None:
    plain = client.chat.completions.create(**ASKED, **rules, extra_body={"speculate": False})
    answer = client.chat.completions.create(**ASKED, **rules)
    texts = [[choice.message.content for choice in each.choices] for each in (plain, answer)]
    assert texts[0] == texts[1]
    found = []
    for each in (plain, answer):
        assert each.usage is not None and each.usage.completion_tokens_details is not None
        details = each.usage.completion_tokens_details
        assert details.accepted_prediction_tokens is not None
        assert details.accepted_prediction_tokens <= each.usage.completion_tokens
        found.append((details.accepted_prediction_tokens, details.rejected_prediction_tokens))
    assert found[0] == (0, 0) and sum(found[1]) > 0
    if not rules["temperature"]:  # the draft model is the model itself: only the end rejects drafts
        assert found[1][0] > 0 and found[1][1] < 8


SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "fields",
    [
        {"model": "pirate"},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": SCHEMA},
            }
        },
        {"logprobs": True, "top_logprobs": 2},
    ],
    ids=["adapter", "grammar", "logprobs"],
)
def test_answers_are_the_same(client: openai.OpenAI, fields: dict[str, Any], seed: int) -> None:
    asked = {**ASKED, "temperature": 1.2, "seed": seed, **fields}
    plain = client.chat.completions.create(**asked, extra_body={"speculate": False})
    answer = client.chat.completions.create(**asked)
    assert answer.choices == plain.choices
    assert answer.usage is not None and answer.usage.completion_tokens_details is not None
    details = answer.usage.completion_tokens_details
    assert (details.accepted_prediction_tokens or 0) + (details.rejected_prediction_tokens or 0)


def test_a_stream_counts_them_in_its_last_chunk(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        **ASKED, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    *_, last = stream
    assert last.usage is not None and last.usage.completion_tokens_details is not None
    assert last.usage.completion_tokens_details.accepted_prediction_tokens


def test_metrics_count_accepted_drafts_by_position(
    server: RunningServer, client: openai.OpenAI
) -> None:
    client.chat.completions.create(**ASKED, temperature=0)
    text = server.get("/metrics").text
    counters = {
        name: float(value)
        for name, value in re.findall(r"^vllm:spec_decode_(\S+?)\{.*?\} (\S+)$", text, re.MULTILINE)
        if "per_pos" not in name
    }
    accepted = {
        int(place): float(value)
        for place, value in re.findall(r'per_pos_total\{.*?position="(\d+)"\} (\S+)', text)
    }
    assert sum(accepted.values()) == counters["num_accepted_tokens_total"] > 0
    assert accepted[0] <= counters["num_drafts_total"] <= counters["num_draft_tokens_total"]
    assert [*accepted] == [*range(8)]
    assert [*accepted.values()] == sorted(accepted.values(), reverse=True)
