"""Speech: from Python, from the command line and over HTTP, the same as the model says alone."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import soundfile
import torch

pytest.importorskip("transformers")

from tiny.dia import CODEC, Dia, make_dia
from tiny.server import RunningServer, serving
from tiny.trained import train

import ostro
from ostro.architectures.dia.inputs import Inputs
from ostro.core.errors import AdapterNotFound, RequestError, Unsupported, UsageError
from ostro.core.load.model import load_model
from ostro.core.messages.requests import JobRequest
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.core.step import ROWS
from ostro.entrypoints.cli import main
from ostro.entrypoints.python.model import LocalModel
from ostro.plugins.pipelines.speech.pipeline import MAX_TEXT
from ostro.plugins.pipelines.speech.sound import Sound

TEXT = "[S1] Hello. [S2] Hello!"
ASKED: dict[str, Any] = {"seed": 7, "temperature": 1.2, "guidance": 2.0, "max_seconds": 0.3}
RATE = CODEC["sampling_rate"]


@pytest.fixture(scope="module")
def dia(tmp_path_factory: pytest.TempPathFactory) -> Dia:
    return make_dia(tmp_path_factory.mktemp("models") / "dia")


@pytest.fixture(scope="module")
def folder(dia: Dia) -> Path:
    return dia.folder


@pytest.fixture(scope="module")
def adapter(dia: Dia, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("adapters") / "accent"
    train(dia.model, made, r=4, target_modules="all-linear")
    return made


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[LocalModel]:
    with ostro.load(folder, dtype="float32") as made:
        assert isinstance(made, LocalModel)
        yield made


@pytest.fixture(scope="module")
def expected(folder: Path) -> np.ndarray:
    """What the model says when nothing stands between it and its request."""
    plugins = PluginManager()
    plugins.load()
    loaded: Any = load_model(folder, Settings(dtype="float32"), plugins)
    given = {"temperature": 1.2, "guidance": 2.0, "max_seconds": 0.3}
    values = Inputs(loaded.raw_config, folder).speech(TEXT, None, given)
    with torch.inference_mode():
        *_, last = loaded.model.work(JobRequest(id="a", values={**values, "seed": 7}), ROWS)
    return last.arrays["samples"].numpy()


def close(sound: np.ndarray, expected: np.ndarray, most: float = 1e-4) -> bool:
    return sound.shape == expected.shape and float(np.abs(sound - expected).max()) <= most


def test_python_says_what_the_model_says(model: LocalModel, expected: np.ndarray) -> None:
    reported: list[tuple[int, int]] = []
    sound = model.speak(TEXT, progress=lambda done, total: reported.append((done, total)), **ASKED)
    assert close(sound.samples, expected) and sound.rate == RATE
    assert sound.samples.dtype == np.float32 and sound.seconds == 0.3
    assert float(expected.std()) > 0.05, "silence proves nothing"
    assert [done for done, _ in reported] == list(range(1, len(reported) + 1))
    assert reported[-1][0] == reported[-1][1]
    assert not close(model.speak(TEXT, **{**ASKED, "seed": 8}).samples, expected)
    other = model.speak("Hello.", voice="S2", **ASKED)
    assert close(other.samples, model.speak("[S2] Hello.", **ASKED).samples)
    assert not close(other.samples, model.speak("Hello.", **ASKED).samples)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"temperature": -1.0}, "temperature=-1"),
        ({"temperature": "hot"}, "temperature='hot' is not a number"),
        ({"top_p": 2.0}, "top_p=2"),
        ({"guidance": 0.0}, "guidance=0.0 is not within 1..100"),
        ({"max_seconds": 60.0}, "max_seconds=60.0 is not within"),
        ({"max_seconds": float("nan")}, "max_seconds=nan is not a number"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": "x"}, "seed='x' is not within"),
        ({"voice": "alloy"}, "unknown voice 'alloy'; expected S1 or S2"),
        ({"audio": b"RIFF"}, "voice cloning is not implemented"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_rejected_request_leaves_the_next_working(
    model: LocalModel, expected: np.ndarray, given: dict[str, Any], said: str
) -> None:
    with pytest.raises((RequestError, Unsupported), match=said):
        model.speak(TEXT, **{**ASKED, **given})
    for text, why in (
        (" ", "the text is empty"),
        ("a" * 100, "102 bytes"),
        ("a" * MAX_TEXT, f"{MAX_TEXT + 2} bytes"),
        ("a" * (MAX_TEXT + 1), f"{MAX_TEXT + 1} characters; at most {MAX_TEXT}"),
    ):
        with pytest.raises(RequestError, match=why) as raised:
            model.speak(text, **ASKED)
        assert raised.value.param == "input"
    assert close(model.speak(TEXT, **ASKED).samples, expected)


def test_requests_select_adapters(model: LocalModel, adapter: Path, expected: np.ndarray) -> None:
    assert model.adapters == []
    with pytest.raises(AdapterNotFound, match="'nobody'"):
        model.speak(TEXT, adapters=["nobody"], **ASKED)
    generation = model.load_adapter("accent", adapter).generation
    sounds = [model.speak(TEXT, adapters={"accent": scale}, **ASKED) for scale in (1, 0.5, 0)]
    assert [sound.generations for sound in sounds] == [[generation], [generation], []]
    assert close(sounds[2].samples, expected)
    assert not close(sounds[0].samples, expected) and not close(sounds[1].samples, expected)
    assert not close(sounds[0].samples, sounds[1].samples)
    model.unload_adapter("accent")
    plain = model.speak(TEXT, **ASKED)
    assert close(plain.samples, expected) and plain.generations is None


def tone(rate: int = 44_100, seconds: float = 3.0) -> Sound:
    time = np.arange(int(rate * seconds)) / rate
    return Sound((0.8 * np.sin(2 * np.pi * 440 * time)).astype(np.float32), rate)


@pytest.mark.parametrize(("format", "most"), [("wav", 4e-5), ("flac", 4e-5), ("pcm", 2e-5)])
def test_files_hold_the_samples(format: str, most: float, tmp_path: Path) -> None:
    sound, path = tone(), tmp_path / f"a.{format.upper()}"
    sound.save(path)
    assert path.read_bytes() == sound.encode(format)
    if format == "pcm":
        samples, rate = np.fromfile(path, "<i2") / np.float32(32767), sound.rate
    else:
        samples, rate = soundfile.read(path, dtype="float32")
    assert rate == sound.rate and close(samples, sound.samples, most)
    loud = Sound(np.array([1.5, -1.5, 0], np.float32), 8000)
    assert np.frombuffer(loud.encode("pcm"), "<i2").tolist() == [32767, -32768, 0]


@pytest.mark.parametrize(("format", "rate"), [("mp3", 44_100), ("opus", 48_000)])
def test_lossy_files_hold_the_tone(format: str, rate: int) -> None:
    coding = {"mp3": ("MP3", "MPEG_LAYER_III"), "opus": ("OGG", "OPUS")}[format]
    if coding[1] not in soundfile.available_subtypes(coding[0]):
        with pytest.raises(Unsupported, match=f"does not write {format}"):
            tone().encode(format)
        return
    samples, found = soundfile.read(io.BytesIO(tone().encode(format)), dtype="float32")
    assert found == rate and abs(len(samples) / rate - 3) < 0.1
    middle = samples[rate : 2 * rate]
    assert int(np.abs(np.fft.rfft(middle)).argmax()) == 440
    assert 0.5 < float(middle.std()) < 0.6


def test_silence_is_a_file_too() -> None:
    nothing = Sound(np.zeros(0, np.float32), 44_100)
    samples, rate = soundfile.read(io.BytesIO(nothing.encode("wav")))
    assert len(samples) == 0 and rate == 44_100 and nothing.encode("pcm") == b""


@pytest.mark.parametrize(
    ("rate", "written"), [(800, 8000), (12_500, 16_000), (24_000, 24_000), (96_000, 48_000)]
)
def test_mp3_has_the_next_rate_that_it_supports(rate: int, written: int) -> None:
    if "MPEG_LAYER_III" not in soundfile.available_subtypes("MP3"):
        pytest.skip("this libsndfile does not write mp3")
    samples = np.sin(np.arange(rate // 2) * 0.1).astype(np.float32) / 2
    found = soundfile.info(io.BytesIO(Sound(samples, rate).encode("mp3")))
    assert found.samplerate == written and found.duration == pytest.approx(0.5, abs=0.15)


def test_formats_without_an_encoder_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(
        RequestError, match="unknown audio format 'aac'; expected one of wav"
    ) as raised:
        tone().encode("aac")
    assert raised.value.param == "response_format"
    with pytest.raises(
        UsageError, match=r"a\.txt: unknown audio format; expected a suffix of \.wav"
    ):
        tone().save(tmp_path / "a.txt")


def test_the_command_writes_a_file(
    folder: Path, expected: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.wav"
    options = ["--seed", "7", "--temperature", "1.2", "--guidance", "2", "--max-seconds", "0.3"]
    common = ["speak", "-m", str(folder), "--dtype", "float32", *options]
    assert main([*common, TEXT, "-o", str(out)]) == 0
    assert capsys.readouterr().out.split() == [str(out)]
    samples, rate = soundfile.read(out, dtype="float32")
    assert rate == RATE and close(samples, expected, 1e-3)
    assert main([*common, TEXT, "-o", str(tmp_path / "a.aac")]) == 2
    assert ".flac" in capsys.readouterr().err
    assert main([*common, TEXT, "-o", str(out), "--voice", "alloy"]) == 1
    assert "unknown voice 'alloy'" in capsys.readouterr().err


@pytest.fixture(scope="module")
def server(folder: Path, adapter: Path) -> Iterator[RunningServer]:
    known: dict[str, Any] = {
        "adapters": (f"accent={adapter}",),
        "adapter_root": str(adapter.parent),
    }
    with serving(Settings(reference=str(folder), dtype="float32", **known)) as running:
        yield running


@pytest.mark.process
def test_http_gives_the_same_output(server: RunningServer, expected: np.ndarray) -> None:
    path, asked = "/v1/audio/speech", {"input": TEXT, "voice": "S1", **ASKED}
    answer = server.post(path, **asked, response_format="wav")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "audio/wav"
    samples, rate = soundfile.read(io.BytesIO(answer.content), dtype="float32")
    assert rate == RATE and close(samples, expected, 1e-3)
    raw = server.post(path, **asked, response_format="pcm", speed=1)
    assert raw.headers["content-type"] == f"audio/pcm; rate={RATE}; channels=1"
    assert close(np.frombuffer(raw.content, "<i2") / np.float32(32767), expected, 1e-3)
    flac = server.post(path, **asked, response_format="flac")
    assert flac.headers["content-type"] == "audio/flac" and flac.content.startswith(b"fLaC")
    for bad, said, param in (
        ({"input": " "}, "the text is empty", "input"),
        ({"input": "a" * 200}, "bytes, expected 1..64", "input"),
        ({"voice": "alloy"}, "unknown voice 'alloy'", "voice"),
        ({"response_format": "aac"}, "unknown audio format 'aac'", "response_format"),
        ({"speed": 9}, "speed=9.0 is not within 0.25..4", "speed"),
        ({"speed": 1.5}, "only 1 is supported", "speed"),
        ({"instructions": "sing"}, "instructions", "instructions"),
        ({"stream_format": "ogg"}, "Invalid enum value 'ogg'", "stream_format"),
        ({"voice": {"id": "alloy"}}, "unknown voice 'alloy'", "voice"),
        ({"voice": {"id": 7}}, "voice.id: Expected `str`", "voice.id"),
        ({"voice": 1}, "voice: Expected", "voice"),
        ({"input": 7}, "input: Expected `str`", "input"),
        ({"metadata": {}}, "unknown field 'metadata'", "metadata"),
        ({"temperature": 1000}, "temperature=1000", "temperature"),
        ({"colour": 1}, "unknown field", "colour"),
        ({"adapter": 7}, "adapter", "adapter"),
    ):
        refused = server.post(path, **{"response_format": "wav", **asked, **bad})
        assert refused.status_code == 400, refused.text
        error = refused.json()["error"]
        assert said in error["message"] and error["param"] == param
    absent = server.post(path, **asked, response_format="wav", adapters=["nobody"])
    assert absent.status_code == 404 and "'nobody'" in absent.text
    chat = server.post("/v1/chat/completions", messages=[{"role": "user", "content": "a"}])
    assert chat.status_code == 400 and "supports speak, not text" in chat.text
    again = server.post(path, **asked, response_format="wav")
    assert again.content == answer.content


@pytest.mark.process
def test_the_client_speaks(server: RunningServer, expected: np.ndarray) -> None:
    call: dict[str, Any] = {"input": TEXT, "model": "dia", "extra_body": ASKED}

    async def speak(**more: Any) -> bytes:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            return (await client.audio.speech.create(**call, **more)).content

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        said = client.audio.speech.create(**call, voice={"id": "S1"}, response_format="wav").content
        samples, _ = soundfile.read(io.BytesIO(said), dtype="float32")
        assert close(samples, expected, 1e-3)
        assert asyncio.run(speak(voice="S1", response_format="wav")) == said
        with client.audio.speech.with_streaming_response.create(
            **call, voice="S1", response_format="wav", stream_format="sse"
        ) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = [x for x in answer.iter_lines() if x.startswith("data: ")]
    *deltas, done = (json.loads(line.removeprefix("data: ")) for line in lines)
    assert {delta["type"] for delta in deltas} == {"speech.audio.delta"}
    assert b"".join(base64.b64decode(delta["audio"]) for delta in deltas) == said
    usage, tokens = done["usage"], Inputs({}, Path("nowhere")).speech(TEXT, None, {})["tokens"]
    assert done["type"] == "speech.audio.done" and usage["output_tokens"] > 0
    assert usage["input_tokens"] == len(tokens)
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


@pytest.mark.process
def test_http_lists_voices(server: RunningServer) -> None:
    assert server.get("/v1/audio/voices").json() == {"voices": ["S1", "S2"]}
    assert server.get("/v1/audio/voices?model=dia").json() == {"voices": ["S1", "S2"]}
    for query, status in (("model=other", 404), ("modle=dia", 400), ("model=dia&model=dia", 400)):
        assert server.get(f"/v1/audio/voices?{query}").status_code == status
    bad = server.post("/v1/audio/speech", input=TEXT, voice="alloy", stream_format="sse")
    assert bad.status_code == 400 and bad.json()["error"]["param"] == "voice"


@pytest.mark.process
def test_http_tells_of_adapters_in_a_header(server: RunningServer, expected: np.ndarray) -> None:
    path, asked = "/v1/audio/speech", {"input": TEXT, **ASKED, "response_format": "pcm"}
    plain = server.post(path, **asked)
    assert "x-adapter-generations" not in plain.headers
    said = server.post(path, **asked, adapter="accent")
    assert said.status_code == 200, said.text
    [known] = server.get("/v1/lora_adapters").json()["data"]
    assert said.headers["x-adapter-generations"] == known["generation"]
    assert not close(np.frombuffer(said.content, "<i2") / np.float32(32767), expected, 1e-3)
    mute = server.post(path, **asked, adapter={"name": "accent", "scale": 0})
    assert mute.content == plain.content and mute.headers["x-adapter-generations"] == ""
