"""Questions about images over HTTP: what the model says when nothing stands before it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from tiny.pictures import address, asked, picture, saved, shown
from tiny.server import RunningServer, serving
from tiny.vision import answer, make_vision

import ostro
from ostro.core.settings import Settings
from ostro.entrypoints.python.model import LocalModel

pytestmark = pytest.mark.process

CHAT = "/v1/chat/completions"
SEEN = "<|vision_start|><|image_pad|><|vision_end|>"
FILMED = "<|vision_start|><|video_pad|><|vision_end|>"
WIDE, LARGE, TALL = picture(1, 40, 24), picture(2, 64, 64), picture(3, 16, 56)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision(tmp_path_factory.mktemp("models") / "vision")


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[LocalModel]:
    with ostro.load(folder, dtype="float32") as made:
        assert isinstance(made, LocalModel)
        yield made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    with serving(Settings(reference=str(folder), dtype="float32")) as running:
        yield running


def ask(server: RunningServer, *messages: dict[str, Any], **more: Any) -> Any:
    asking = {"temperature": 0, "max_tokens": 12, **more}
    found: httpx.Response = server.post(CHAT, messages=list(messages), **asking)
    assert found.status_code == 200, found.text
    return found.json()


def reply_of(body: Any) -> str:
    text: str = body["choices"][0]["message"]["content"]
    return text


def chat(*turns: str) -> str:
    """The prompt of a conversation whose turns alternate, the user's first."""
    roles = ("user", "assistant")
    whole = "".join(f"<|im_start|>{roles[i % 2]}\n{t}<|im_end|>\n" for i, t in enumerate(turns))
    return f"{whole}<|im_start|>assistant\n"


def pixels(image: Image.Image) -> np.ndarray[Any, Any]:
    return np.asarray(image)


def test_an_image_and_its_question(server: RunningServer, model: LocalModel) -> None:
    body = ask(server, asked(shown(WIDE), "hello"))
    assert reply_of(body) == answer(model, chat(f"{SEEN}hello"), pixels(WIDE))
    assert reply_of(body) != reply_of(ask(server, asked(shown(picture(8, 40, 24)), "hello")))
    assert body["usage"]["prompt_tokens"] == 15 + 2 + len(
        model.tokenizer.encode(chat("hello"), special=False, parse_special=True)
    )


@pytest.mark.parametrize("format", ["JPEG", "WEBP", "BMP", "GIF", "TIFF"])
def test_formats(server: RunningServer, model: LocalModel, format: str) -> None:
    data = saved(LARGE, format)
    decoded = pixels(Image.open(BytesIO(data)).convert("RGB"))
    part = {"type": "image_url", "image_url": {"url": address(data, "image/any"), "detail": "low"}}
    assert reply_of(ask(server, asked(part))) == answer(model, chat(SEEN), decoded)


def test_images_stand_where_they_were_named(server: RunningServer, model: LocalModel) -> None:
    parts = ["of", shown(WIDE), "and", shown(LARGE), "the way"]
    prompt = chat(f"of{SEEN}and{SEEN}the way")
    there = reply_of(ask(server, asked(*parts)))
    assert there == answer(model, prompt, pixels(WIDE), pixels(LARGE))
    parts[1], parts[3] = parts[3], parts[1]
    back = reply_of(ask(server, asked(*parts)))
    assert back == answer(model, prompt, pixels(LARGE), pixels(WIDE)) != there


def test_the_same_image_twice(server: RunningServer, model: LocalModel) -> None:
    found = reply_of(ask(server, asked(shown(TALL), shown(TALL))))
    assert found == answer(model, chat(SEEN + SEEN), pixels(TALL), pixels(TALL))


def test_a_conversation_about_several_images(server: RunningServer, model: LocalModel) -> None:
    turns = [asked(shown(WIDE), "a"), {"role": "assistant", "content": "word"}]
    found = reply_of(ask(server, *turns, asked("b", shown(TALL))))
    prompt = chat(f"{SEEN}a", "word", f"b{SEEN}")
    assert found == answer(model, prompt, pixels(WIDE), pixels(TALL))


def test_addresses_of_every_kind(server: RunningServer) -> None:
    url, expected = address(saved(WIDE)), reply_of(ask(server, asked(shown(WIDE), "hello")))
    for part in (
        {"type": "image_url", "image_url": url},
        {"type": "input_image", "image_url": url},
        {"type": "image_url", "image_url": {"url": url.replace("data:image/png;", "DATA:;")}},
    ):
        assert reply_of(ask(server, asked(part, "hello"))) == expected, part["type"]


def test_a_video(server: RunningServer, model: LocalModel) -> None:
    frames = [picture(i, 24, 16) for i in range(6)]
    options = {"save_all": True, "append_images": frames[1:], "duration": 100, "lossless": True}
    data = saved(frames[0], "WEBP", **options)
    part = {"type": "video_url", "video_url": {"url": address(data, "video/webp")}}
    film = np.stack([pixels(frame) for frame in frames])
    found = reply_of(ask(server, asked(part, "hello")))
    assert found == answer(model, chat(f"{FILMED}hello"), film)


def test_a_stream_says_the_same(server: RunningServer) -> None:
    asking = asked(shown(LARGE), "hello")
    body = {"messages": [asking], "temperature": 0, "max_tokens": 12, "stream": True}
    lines = server.post(CHAT, **body).text.splitlines()
    pieces = [json.loads(x.removeprefix("data: ")) for x in lines if x.startswith("data: {")]
    whole = "".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces)
    assert whole == reply_of(ask(server, asking))


def test_several_answers_to_one_image(server: RunningServer) -> None:
    body = ask(server, asked(shown(LARGE), "hello"), n=3)
    texts = [choice["message"]["content"] for choice in body["choices"]]
    assert texts == [reply_of(ask(server, asked(shown(LARGE), "hello")))] * 3


def test_a_later_turn_finds_the_image_again(server: RunningServer, model: LocalModel) -> None:
    """The rows of an image are found by what it holds, not by the tokens that stand for it."""
    first, other = asked(shown(picture(20, 64, 64)), "one"), picture(21, 64, 64)
    prompt = ask(server, first)
    assert prompt["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    more = [{"role": "assistant", "content": reply_of(prompt)}, asked("two")]
    again = ask(server, first, *more)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64
    changed = ask(server, asked(shown(other), "one"), *more)
    assert changed["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    reply = chat(f"{SEEN}one", reply_of(prompt), "two")
    assert reply_of(changed) == answer(model, reply, pixels(other))
    assert reply_of(again) == answer(model, reply, pixels(picture(20, 64, 64)))
