"""The routes of audio and images with the OpenAI client, and images in chats and responses.

python routes_openai_media.py http://127.0.0.1:8000 [FEATURE ...]

The server has models of random weights: "whisper", "speaker", "painter" and "vision".
"""

from __future__ import annotations

import base64
import io
import math
import struct
import wave
from collections.abc import Callable
from typing import Any

import openai
from routes import PIXEL, Feature, collect, rejected, run_routes, wait
from routes_openai import lax, make_clients

PNG = ("a.png", base64.b64decode(PIXEL), "image/png")
URL = f"data:image/png;base64,{PIXEL}"


def sound(seconds: float = 0.5) -> tuple[str, bytes, str]:
    """A WAV file of a tone."""
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        tones = (int(9000 * math.sin(i * 0.2)) for i in range(int(16000 * seconds)))
        file.writeframes(b"".join(struct.pack("<h", tone) for tone in tones))
    return "a.wav", data.getvalue(), "audio/wav"


# Audio


async def transcription(client: Any) -> None:
    made = await wait(client.audio.transcriptions.create(model="whisper", file=sound()))
    assert isinstance(made.text, str) and made.usage.type in ("duration", "tokens")


async def transcription_stream(client: Any) -> None:
    events = await collect(
        client.audio.transcriptions.create(model="whisper", file=sound(), stream=True)
    )
    deltas = [event.delta for event in events if event.type == "transcript.text.delta"]
    assert events[-1].type == "transcript.text.done" and "".join(deltas) == events[-1].text


async def transcription_verbose(client: Any) -> None:
    made = await wait(
        client.audio.transcriptions.create(
            model="whisper",
            file=sound(),
            response_format="verbose_json",
            timestamp_granularities=["segment"],
            language="en",
        )
    )
    assert 0.4 < made.duration < 0.6 and made.segments and made.language


async def transcription_texts(client: Any) -> None:
    for form in ("text", "srt", "vtt"):
        made = await wait(
            client.audio.transcriptions.create(model="whisper", file=sound(), response_format=form)
        )
        assert isinstance(made, str)
        assert made.startswith("WEBVTT") or form != "vtt"


async def translation(client: Any) -> None:
    made = await wait(client.audio.translations.create(model="whisper", file=sound()))
    assert isinstance(made.text, str)


SPEECH: dict[str, Any] = {"model": "speaker", "input": "Hi", "voice": "S1"}
SPEECH["extra_body"] = {"max_seconds": 0.3}


async def speech(client: Any) -> None:
    made = await wait(client.audio.speech.create(response_format="wav", **SPEECH))
    with wave.open(io.BytesIO(made.content)) as file:
        assert file.getnchannels() == 1 and file.getnframes() > 0
    assert made.response.headers["content-type"] == "audio/wav"


async def speech_stream(client: Any) -> None:
    manager = client.audio.speech.with_streaming_response.create(response_format="pcm", **SPEECH)
    if hasattr(manager, "__aenter__"):
        async with manager as response:
            parts = [part async for part in response.iter_bytes()]
    else:
        with manager as response:
            parts = [*response.iter_bytes()]
    assert len(b"".join(parts)) > 0 and len(b"".join(parts)) % 2 == 0


# Images

DRAW: dict[str, Any] = {"model": "painter", "prompt": "a", "size": "16x16"}


def images(client: Any) -> Any:
    """The methods of images; the types of version 2 know three sizes only."""
    return client.images if int(openai.VERSION.split(".")[0]) > 2 else lax(client).images


def is_png(text: str) -> bool:
    return base64.b64decode(text).startswith(b"\x89PNG")


async def image(client: Any) -> None:
    made = await wait(images(client).generate(n=2, **DRAW))
    assert len(made.data) == 2 and all(is_png(x.b64_json) for x in made.data) and made.created


async def image_stream(client: Any) -> None:
    events = await collect(images(client).generate(stream=True, **DRAW))
    assert events[-1].type == "image_generation.completed" and is_png(events[-1].b64_json)


async def image_url(client: Any) -> None:
    made = await wait(images(client).generate(response_format="url", **DRAW))
    file = made.data[0].url.split("/")[-2]
    assert (await wait(client.files.content(file))).content.startswith(b"\x89PNG")
    await wait(client.files.delete(file))


async def image_edit(client: Any) -> None:
    made = await wait(images(client).edit(image=PNG, **DRAW))
    assert is_png(made.data[0].b64_json)


async def image_edit_stream(client: Any) -> None:
    events = await collect(images(client).edit(image=PNG, stream=True, **DRAW))
    assert events[-1].type == "image_edit.completed" and is_png(events[-1].b64_json)


# Images in chats and responses

PART = {"type": "image_url", "image_url": {"url": URL}}
LOOK: list[Any] = [{"role": "user", "content": [PART, {"type": "text", "text": "What is it?"}]}]
SEE: dict[str, Any] = {"model": "vision", "messages": LOOK, "max_tokens": 4}


async def chat_image(client: Any) -> None:
    made = await wait(client.chat.completions.create(**SEE))
    assert made.usage.completion_tokens > 0 and made.usage.prompt_tokens > 4


async def chat_image_stream(client: Any) -> None:
    chunks = await collect(client.chat.completions.create(stream=True, **SEE))
    assert chunks[-1].choices[0].finish_reason


LOOKED: list[Any] = [{"role": "user", "content": [{"type": "input_image", "image_url": URL}]}]


async def response_image(client: Any) -> None:
    made = await wait(client.responses.create(model="vision", input=LOOKED, max_output_tokens=4))
    assert made.usage.input_tokens > 4


async def response_image_file(client: Any) -> None:
    file = await wait(client.files.create(file=PNG, purpose="vision"))
    content = [{"type": "input_image", "file_id": file.id, "detail": "auto"}]
    inputs: list[Any] = [{"role": "user", "content": content}]
    made = await wait(client.responses.create(model="vision", input=inputs, max_output_tokens=4))
    assert made.usage.input_tokens > 4
    await wait(client.files.delete(file.id))


# Models without the task


def unsupported(route: str, name: str, word: str, call: Callable[[Any], Any]) -> Feature:
    async def whole(client: Any) -> str:
        return await rejected(lambda: call(client), 400, word)

    return Feature(f"POST {route}", name, whole)


TRANSCRIBE = "POST /v1/audio/transcriptions"
FEATURES = [
    Feature(TRANSCRIBE, "create", transcription, transcription_stream),
    Feature(TRANSCRIBE, "create, verbose_json", transcription_verbose),
    Feature(TRANSCRIBE, "create, text, srt, vtt", transcription_texts),
    Feature("POST /v1/audio/translations", "create", translation),
    Feature("POST /v1/audio/speech", "create", speech, speech_stream),
    Feature("POST /v1/images/generations", "generate", image, image_stream),
    Feature("POST /v1/images/generations", "generate, url", image_url),
    Feature("POST /v1/images/edits", "edit", image_edit, image_edit_stream),
    Feature("POST /v1/chat/completions", "create, image_url", chat_image, chat_image_stream),
    Feature("POST /v1/responses", "create, input_image", response_image),
    Feature("POST /v1/responses", "create, input_image of a file", response_image_file),
    unsupported(
        *("/v1/audio/transcriptions", "create (text model)", "not transcribe"),
        lambda c: c.audio.transcriptions.create(model="starter", file=sound()),
    ),
    unsupported(
        *("/v1/audio/translations", "create (text model)", "not trans"),
        lambda c: c.audio.translations.create(model="starter", file=sound()),
    ),
    unsupported(
        *("/v1/audio/speech", "create (text model)", "not speak"),
        lambda c: c.audio.speech.create(model="starter", input="a", voice="alloy"),
    ),
    unsupported(
        *("/v1/images/generations", "generate (text model)", "not draw"),
        lambda c: c.images.generate(model="starter", prompt="a"),
    ),
    unsupported(
        *("/v1/images/edits", "edit (text model)", "not draw"),
        lambda c: c.images.edit(model="starter", prompt="a", image=PNG),
    ),
    unsupported(
        *("/v1/images/variations", "create_variation", "variations"),
        lambda c: c.images.create_variation(model="painter", image=PNG),
    ),
]

if __name__ == "__main__":
    run_routes(FEATURES, make_clients)
