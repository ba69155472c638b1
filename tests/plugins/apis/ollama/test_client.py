"""Ollama's Python client against a server: sync, async and streaming."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import numpy as np
import ollama
import pytest
from echo.server import Running

from ostro.pipelines import PoolingResult

HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
ANSWER = "user\nhi\nassistant\n"
"""What the echo engine answers: the prompt, without control tokens."""
NOT_IMPLEMENTED = "is not supported: the models are chosen when the server starts"


class Lengths:
    """Embeds a text as the vector (number of characters, 0)."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}

    async def embed(self, inputs: list[str], **options: Any) -> PoolingResult[Any]:
        self.asked = options
        rows = np.array([[len(text), 0] for text in inputs], np.float32)
        return PoolingResult(rows, 7, None)


@pytest.fixture(scope="module")
def vectors(server: Running) -> Lengths:
    found = Lengths()
    server.service.models["echo"] = {**server.service.models["echo"], "embed": found}
    return found


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[ollama.Client]:
    with ollama.Client(server.url) as found:
        yield found


def test_chat(client: ollama.Client) -> None:
    found = client.chat("echo:latest", HI)
    assert found.model == "echo:latest" and found.message.role == "assistant"
    assert found.message.content == ANSWER and found.message.tool_calls is None
    assert found.done and found.done_reason == "stop" and found.load_duration == 0
    assert found.prompt_eval_count and found.eval_count == found.prompt_eval_count
    assert found.total_duration is not None and found.total_duration > 0
    assert found.prompt_eval_duration and found.eval_duration is not None
    assert found.prompt_eval_duration + found.eval_duration <= found.total_duration
    assert found.created_at and datetime.fromisoformat(found.created_at).tzinfo is not None


def test_a_final_message_of_the_assistant_is_continued(client: ollama.Client) -> None:
    found = client.chat("echo", [*HI, {"role": "assistant", "content": "I am"}])
    assert found.message.content == "user\nhi\nassistant\nI am"


def test_streamed_chat(client: ollama.Client) -> None:
    pieces = list(client.chat("echo", HI, stream=True, options={"num_predict": 7}))
    *texts, last = pieces
    assert texts and "".join(each.message.content or "" for each in texts) == ANSWER[:6]
    assert not any(each.done or each.eval_count for each in texts)
    assert last.done and last.done_reason == "length" and last.message.content == ""
    assert last.eval_count == 7


def test_generate(client: ollama.Client) -> None:
    whole = client.generate("echo", "hi", system="be short")
    assert whole.response == f"system\nbe short\n{ANSWER}"
    raw = client.generate("echo", "hi", raw=True, logprobs=True, top_logprobs=2)
    assert raw.response == "hi" and raw.logprobs is not None
    assert [each.token for each in raw.logprobs] == ["h", "i"]
    assert raw.logprobs[0].top_logprobs and len(raw.logprobs[0].top_logprobs) == 2
    assert raw.logprobs[0].logprob == pytest.approx(-ord("h") / 1000)
    whole = client.generate("echo", "\u00e9", raw=True, logprobs=True)
    assert [each.token for each in whole.logprobs or ()] == [r"bytes:\xc3", r"bytes:\xa9"]
    pieces = list(client.generate("echo", "hi", raw=True, stream=True))
    assert "".join(each.response or "" for each in pieces) == "hi" and pieces[-1].done


def test_a_request_without_a_prompt_answers_at_once(client: ollama.Client) -> None:
    for found in (client.generate("echo", keep_alive=0), client.chat("echo")):
        assert found.done and found.done_reason == "load" and found.eval_count is None


def test_more_tokens_than_the_context_has_end_with_it(client: ollama.Client) -> None:
    for limit in (10**6, -1, 0):
        assert client.chat("echo", HI, options={"num_predict": limit}).done_reason == "stop"


def test_embed(client: ollama.Client, vectors: Lengths) -> None:
    found = client.embed("echo", ["abc", ""], dimensions=2)
    assert found.embeddings == [[1, 0], [0, 0]] and found.prompt_eval_count == 7
    assert vectors.asked["truncate"] == -1 and vectors.asked["dimensions"] == 2
    assert client.embed("echo", "abc", truncate=False).embeddings == [[1, 0]]
    assert vectors.asked["truncate"] == 0
    for asked, truncate in ((9, 9), (10**6, 4096)):
        client.embed("echo", "abc", options={"num_ctx": asked})
        assert vectors.asked["truncate"] == truncate
    assert client.embed("echo", "").embeddings == []
    assert client.embeddings("echo", "abc").embedding == [3, 0]
    assert client.embeddings("echo").embedding == []


def test_lists_of_models(client: ollama.Client, server: Running) -> None:
    (listed,) = client.list().models
    assert listed.model == "echo" and listed.modified_at is not None
    (running,) = client.ps().models
    assert running.name == "echo" and running.context_length == 4096
    assert running.expires_at is not None and running.expires_at.year == 9999
    found = client.show("echo")
    assert found.template == server.service.served["echo"].template.source  # type: ignore[union-attr]
    assert found.capabilities == ["completion", "tools", "thinking", "embedding"]
    assert found.modelinfo == {
        "general.architecture": "echo",
        "general.basename": "echo",
        "echo.context_length": 4096,
        "echo.vocab_size": 300,
    }
    assert found.details is not None and found.details.family == "echo"
    assert server.http.get("/api/version").json()["version"].count(".") == 2
    assert server.http.get("/").text == "Ollama is running"
    assert server.http.head("/").status_code == 200


def test_actions_on_ollamas_library_are_rejected(client: ollama.Client, tmp_path: Any) -> None:
    file = tmp_path / "blob"
    file.write_bytes(b"x")
    for action in (
        lambda: client.pull("x"),
        lambda: next(iter(client.pull("x", stream=True))),
        lambda: client.push("x"),
        lambda: client.create("x", from_="y"),
        lambda: client.copy("x", "y"),
        lambda: client.delete("x"),
        lambda: client.create_blob(file),
    ):
        with pytest.raises(ollama.ResponseError, match=NOT_IMPLEMENTED) as caught:
            action()
        assert caught.value.status_code == 400


def test_the_asynchronous_client(server: Running, vectors: Lengths) -> None:
    async def main() -> None:
        async with ollama.AsyncClient(server.url) as client:
            chat = await client.chat("echo", HI)
            assert chat.message.content == ANSWER
            pieces = [each async for each in await client.chat("echo", HI, stream=True)]
            assert "".join(each.message.content or "" for each in pieces) == chat.message.content
            text = await client.generate("echo", "hi", raw=True)
            assert text.response == "hi"
            texts = [each async for each in await client.generate("echo", "hi", stream=True)]
            assert texts[-1].done and texts[-1].eval_count
            assert (await client.embed("echo", "abc")).embeddings == [[1, 0]]
            assert (await client.embeddings("echo", "abc")).embedding == [3, 0]
            assert [each.model for each in (await client.list()).models] == ["echo"]
            assert [each.model for each in (await client.ps()).models] == ["echo"]
            assert (await client.show("echo")).capabilities
            for action in (client.pull("x"), client.delete("x"), client.copy("x", "y")):
                with pytest.raises(ollama.ResponseError, match=NOT_IMPLEMENTED):
                    await action

    asyncio.run(main())


def test_tools_and_thinking_reach_the_template(client: ollama.Client) -> None:
    def add(a: int, b: int) -> int:
        """Add two numbers.

        Args:
          a: the first
          b: the second
        """
        return a + b

    calls = [{"function": {"name": "add", "arguments": {"a": 1, "b": 2}}}]
    messages = [
        *HI,
        {"role": "assistant", "content": "", "thinking": "easy", "tool_calls": calls},
        {"role": "tool", "content": "3", "tool_name": "add"},
    ]
    found = client.chat("echo", messages, tools=[add], think=True)
    text = found.message.content or ""
    assert text.startswith("tools\n[{") and '"name": "add"' in text
    assert "tool\n3" in text and text.endswith("<think>")
    assert not (client.chat("echo", HI, think=False).message.content or "").endswith("<think>")
