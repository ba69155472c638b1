"""A server that is killed amid batches and a response in the background: the next one ends all."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

LINES = 500
ROOT = Path(__file__).resolve().parents[3]
CHAT = "/v1/chat/completions"


@contextmanager
def serve(store: Path, log: Path) -> Iterator[tuple[subprocess.Popen[bytes], openai.OpenAI]]:
    """A server of the starter model on a store, and its client."""
    command = [sys.executable, "-m", "ostro", "serve", "--port", "0", "--store", str(store)]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, "--threads", "1"],
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
    try:
        limit = time.monotonic() + 120
        while not (found := re.search(r"(http://127\.0\.0\.1:\d+/v1), ready", log.read_text())):
            assert time.monotonic() < limit and process.poll() is None, log.read_text()
            time.sleep(0.1)
        with openai.OpenAI(base_url=found[1], api_key="none", max_retries=5) as client:
            yield process, client
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def messages_client(client: openai.OpenAI) -> anthropic.Anthropic:
    """A client of Anthropic's API of the same server."""
    url = str(client.base_url).removesuffix("/v1/")
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=5)


def line(number: int) -> dict[str, Any]:
    question = f"What is {number} + 1?"
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": 8, "temperature": 0}
    return {"custom_id": f"line-{number}", "method": "POST", "url": CHAT, "body": body}


MESSAGES: list[Any] = [
    {"custom_id": f"message-{n}", "params": {"model": "default", **line(n)["body"]}}
    for n in range(100)
]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_server_loses_and_repeats_nothing(tmp_path: Path) -> None:
    store = tmp_path / "state"
    data = "\n".join(json.dumps(line(number)) for number in range(LINES)).encode()
    with serve(store, tmp_path / "first") as (process, client):
        file = client.files.create(file=("lines.jsonl", data), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        counts = None
        while counts is None or counts.completed < LINES // 10:
            time.sleep(0.02)
            counts = client.batches.retrieve(batch.id).request_counts
        assert counts.completed < LINES, "the batch was too fast to be interrupted"
        with messages_client(client) as messages:
            message_batch = messages.messages.batches.create(requests=MESSAGES).id
        response = client.responses.create(
            input="Tell me a story about a cat.",
            max_output_tokens=400,
            background=True,
            temperature=0,
        )
        process.kill()
        process.wait(30)
    with serve(store, tmp_path / "second") as (_, client):
        limit = time.monotonic() + 300
        while (batch := client.batches.retrieve(batch.id)).completed_at is None:
            assert time.monotonic() < limit and batch.failed_at is None, batch
            time.sleep(0.2)
        while (response := client.responses.retrieve(response.id)).status in (
            "queued",
            "in_progress",
        ):
            assert time.monotonic() < limit, response
            time.sleep(0.2)
        assert response.status == "completed" and response.output_text
        with messages_client(client) as messages:
            batches = messages.messages.batches
            while batches.retrieve(message_batch).processing_status != "ended":
                assert time.monotonic() < limit
                time.sleep(0.2)
            results = list(batches.results(message_batch))
        assert [each.custom_id for each in results] == [f"message-{n}" for n in range(100)]
        assert {each.result.type for each in results} == {"succeeded"}
        assert batch.request_counts is not None and batch.output_file_id is not None
        assert batch.request_counts.completed == LINES
        found = client.files.content(batch.output_file_id).text.splitlines()
        assert sorted(json.loads(each)["custom_id"] for each in found) == sorted(
            f"line-{number}" for number in range(LINES)
        )
