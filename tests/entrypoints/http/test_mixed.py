"""Mixed traffic on one server: every answer is the one that its request gets alone."""

from __future__ import annotations

import gc
import io
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import soundfile
from tiny.bert import make_bert
from tiny.flux import make_flux
from tiny.inputs import leaked_shared_memory
from tiny.model import make_model
from tiny.pictures import asked, picture, shown
from tiny.server import RunningServer, serving
from tiny.vision import make_vision
from tiny.whisper import make_whisper, sound

from ostro.core.settings import Settings

pytestmark = pytest.mark.process

COUNT = 4
"""Requests of each kind."""
CHAT = "/v1/chat/completions"
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "logprobs": True}
SIZES = [(40, 24), (64, 64), (16, 56), (64, 64)]
Answer = tuple[Any, list[float]]
"""What must be equal, and the numbers that are nearly: rows of a batch are not summed as one is."""
Ask = Callable[[RunningServer, int, str], Answer]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server of four models."""
    root = tmp_path_factory.mktemp("models")
    first = make_model(root / "text")
    make_bert(root / "bert")
    also = [make_vision(root / "vision"), root / "bert"]
    make_whisper(root / "whisper")
    paths = [str(path) for path in (*also, root / "whisper")]
    with serving(Settings(reference=str(first), dtype="float32"), also=paths) as running:
        yield running


def ask_text(server: RunningServer, i: int, salt: str) -> Answer:
    words = "hello again world " * (3 * i + 1)
    asking = {"model": "text", "messages": [asked(words)], "cache_salt": salt}
    return answer_of(ok(server.post(CHAT, **asking, **GREEDY)))


def ask_stream(server: RunningServer, i: int, salt: str) -> Answer:
    asking = {"model": "text", "messages": [asked(f"good morning {i}")], "cache_salt": salt}
    pieces, numbers = list[str](), list[float]()
    with events(server, **asking, **GREEDY) as lines:
        for line in lines:
            choice = json.loads(line)["choices"][0]
            pieces.append(choice["delta"].get("content", ""))
            numbers += logprobs_of(choice)
    return "".join(pieces), numbers


def ask_image(server: RunningServer, i: int, salt: str) -> Answer:
    message = asked("the time", shown(picture(i, *SIZES[i])), "of the year")
    asking = {"model": "vision", "messages": [message], "cache_salt": salt}
    return answer_of(ok(server.post(CHAT, **asking, **GREEDY)))


def ask_vectors(server: RunningServer, i: int, salt: str) -> Answer:
    body = ok(server.post("/v1/embeddings", model="bert", input=["hello world " * (i + 1), "a"]))
    rows = [entry["embedding"] for entry in body["data"]]
    return len(rows), [x for row in rows for x in row]


def ask_transcript(server: RunningServer, i: int, salt: str) -> Answer:
    """The temperature is one that draws the likeliest, and is not tried again."""
    form = {"model": "whisper", "language": "en", "response_format": "verbose_json"}
    answer = httpx.post(
        f"{server.url}/v1/audio/transcriptions",
        data={**form, "temperature": "0.0001"},
        files={"file": ("a.wav", wav(0.5 + i / 4, i))},
        timeout=60,
    )
    body = ok(answer)
    assert body["segments"]
    numbers = [segment["avg_logprob"] for segment in body["segments"]]
    return (body["text"], [segment["tokens"] for segment in body["segments"]]), numbers


def wav(seconds: float, seed: int) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, sound(seconds, seed), 16000, format="WAV")
    return file.getvalue()


KINDS: list[Ask] = [ask_text, ask_stream, ask_image, ask_vectors, ask_transcript]


def ok(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def answer_of(body: Any) -> Answer:
    [choice] = body["choices"]
    assert choice["finish_reason"] and body["usage"]["completion_tokens"]
    return choice["message"]["content"], logprobs_of(choice)


def same(found: Answer, expected: Answer) -> bool:
    return found[0] == expected[0] and found[1] == pytest.approx(expected[1], abs=1e-4)


def logprobs_of(choice: Any) -> list[float]:
    return [entry["logprob"] for entry in (choice["logprobs"] or {"content": []})["content"]]


@contextmanager
def events(server: RunningServer, **body: Any) -> Iterator[Iterator[str]]:
    """The events of a stream as they come, without the last."""
    body["stream"] = True
    with httpx.stream("POST", server.url + CHAT, json=body, timeout=120) as response:
        assert response.status_code == 200, response.read()
        yield (
            line.removeprefix("data: ")
            for line in response.iter_lines()
            if line.startswith("data: ") and not line.endswith("[DONE]")
        )


def leave(server: RunningServer, model: str, *parts: Any) -> None:
    """Ask for an answer without end and go away in its midst."""
    endless = {"temperature": 0, "max_tokens": 900, "ignore_eos": True}
    with events(server, model=model, messages=[asked(*parts)], **endless) as lines:
        for _ in range(5):
            next(lines)


def free(server: RunningServer, before: list[Path]) -> None:
    """Nothing runs, waits or is held, in the engine and in shared memory, or soon will not."""
    begun = time.monotonic()
    while (stats := server.stats()).running or stats.waiting or stats.blocks_used:
        assert time.monotonic() - begun < 120, stats
        time.sleep(0.02)
    assert server.server.engine.requests == 0
    gc.collect()
    assert leaked_shared_memory() == before


def test_each_answer_is_the_one_it_gets_alone(server: RunningServer) -> None:
    before = leaked_shared_memory()
    jobs = [(kind, i) for i in range(COUNT) for kind in KINDS]
    with ThreadPoolExecutor(len(jobs) + 2) as threads:
        leavers = [
            threads.submit(leave, server, "text", "hello"),
            threads.submit(leave, server, "vision", shown(picture(9, 64, 64))),
        ]
        asking = [threads.submit(kind, server, i, "together") for kind, i in jobs]
        together = [each.result(120) for each in asking]
        for each in leavers:
            each.result(60)
    free(server, before)
    for (kind, i), answer in zip(jobs, together, strict=True):
        assert same(kind(server, i, "alone"), answer), f"{kind.__name__} {i}"
    free(server, before)


def test_outputs_depend_on_the_input(server: RunningServer) -> None:
    """Without this the test above could not fail."""
    for kind in KINDS:
        assert not same(kind(server, 0, ""), kind(server, 1, "")), kind.__name__


def test_a_disconnect_leaves_other_requests_running(server: RunningServer) -> None:
    before, expected = leaked_shared_memory(), ask_stream(server, 0, "x")
    with ThreadPoolExecutor(9) as threads:
        leaving = [threads.submit(leave, server, "text", f"hello {i}") for i in range(8)]
        assert same(ask_stream(server, 0, "y"), expected)
        for each in leaving:
            each.result(60)
    free(server, before)


@contextmanager
def client_of(server: RunningServer) -> Iterator[openai.OpenAI]:
    """OpenAI's own client."""
    url = f"{server.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as client:
        yield client


def test_the_official_client(server: RunningServer) -> None:
    """It says what a plain request says, and raises its own errors."""
    with client_of(server) as client:
        message = asked("the time", shown(picture(0, *SIZES[0])), "of the year")
        answer = client.chat.completions.create(model="vision", messages=[message], **GREEDY)
        assert answer.choices[0].message.content == ask_image(server, 0, "")[0]
        found = client.embeddings.create(model="bert", input=["hello world ", "a"])
        rows = [x for entry in found.data for x in entry.embedding]
        assert rows == pytest.approx(ask_vectors(server, 0, "")[1], abs=1e-6)
        sounds, file = client.audio.transcriptions, ("a.wav", wav(0.5, 0))
        how: dict[str, Any] = {"model": "whisper", "file": file, "temperature": 0.0001}
        (text, tokens), _ = ask_transcript(server, 0, "")
        assert sounds.create(**how, language="en").text == text
        transcript = sounds.create(**how, language="en", response_format="verbose_json")
        assert [segment.tokens for segment in transcript.segments] == tokens
        assert "-->" in sounds.create(**how, language="en", response_format="srt")
        *pieces, done = sounds.create(**how, language="en", stream=True)
        assert done.text == text == "".join(piece.delta for piece in pieces).strip()
        with pytest.raises(openai.BadRequestError, match="accepts text only, not image"):
            client.chat.completions.create(model="text", messages=[message])
        with pytest.raises(openai.BadRequestError, match="audio file cannot be read"):
            sounds.create(model="whisper", file=("a.wav", b"none"))
        with pytest.raises(openai.NotFoundError, match="model 'gpt-9' not found"):
            client.embeddings.create(model="gpt-9", input="a")


@pytest.mark.slow
def test_images_are_generated_beside_text(tmp_path: Path) -> None:
    pytest.importorskip("diffusers")
    models = [make_flux(tmp_path / "flux"), make_vision(tmp_path / "vision")]
    draw = {"model": "flux", "prompt": "hello world", "size": "32x48", "steps": 3, "seed": 7}

    def ask_drawing(server: RunningServer, i: int, salt: str) -> Answer:
        body = ok(server.post("/v1/images/generations", **{**draw, "seed": i}))
        return body["data"], []

    kinds: list[Ask] = [ask_text, ask_image, ask_drawing]
    text = make_model(tmp_path / "text")
    asked_for = Settings(reference=str(text), dtype="float32")
    with serving(asked_for, also=[str(path) for path in models]) as server:
        jobs = [(kind, i) for i in range(COUNT) for kind in kinds]
        with ThreadPoolExecutor(len(jobs)) as threads:
            asking = [threads.submit(kind, server, i, "together") for kind, i in jobs]
            together = [each.result(120) for each in asking]
        for (kind, i), answer in zip(jobs, together, strict=True):
            assert same(kind(server, i, "alone"), answer), f"{kind.__name__} {i}"
        assert not same(ask_drawing(server, 0, ""), ask_drawing(server, 1, ""))
        with client_of(server) as client:
            more = {"steps": draw["steps"], "seed": 0}
            form = {name: draw[name] for name in ("model", "prompt", "size")}
            drawn = client.images.generate(**form, extra_body=more).data
        assert [{"b64_json": each.b64_json} for each in drawn] == ask_drawing(server, 0, "")[0]
        free(server, leaked_shared_memory())
