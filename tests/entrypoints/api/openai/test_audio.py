"""Transcriptions over HTTP: as Python writes them, in every form, and what is refused."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest
import soundfile
from tiny.model import make_model
from tiny.server import RunningServer, serving
from tiny.trained import train
from tiny.whisper import make_whisper, sound

import ostro
from ostro.core.settings import Settings
from ostro.entrypoints.python.model import LocalModel

pytestmark = pytest.mark.process

COLD = {"language": "en", "temperature": "0.0001"}
"""A temperature at which the likeliest is drawn, and nothing is tried again."""
TYPES = {
    "json": "application/json",
    "verbose_json": "application/json",
    "text": "text/plain",
    "srt": "application/x-subrip",
    "vtt": "text/vtt",
}


def file_of(seconds: float = 1.7, form: str = "WAV", seed: int = 0) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, sound(seconds, seed), 16000, format=form)
    return file.getvalue()


SOUND, SHORT = file_of(), file_of(0.3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models") / "whisper"
    heads = [[0, 1], [1, 2]]
    train(
        make_whisper(made, alignment_heads=heads),
        made.parent / "accent",
        r=4,
        target_modules="all-linear",
    )
    return made


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[LocalModel]:
    with ostro.load(folder, dtype="float32") as made:
        assert isinstance(made, LocalModel)
        yield made


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A Whisper model and a text model."""
    text = make_model(tmp_path_factory.mktemp("models") / "text")
    adapters = (f"accent={folder.parent / 'accent'}",)
    asked = Settings(reference=str(folder), dtype="float32", adapters=adapters)
    with serving(asked, also=[str(text)]) as running:
        yield running


def post(
    server: RunningServer, task: str = "transcriptions", data: bytes = SOUND, **fields: str
) -> httpx.Response:
    url = f"{server.url}/v1/audio/{task}"
    return httpx.post(url, data=fields, files={"file": ("a.wav", data)}, timeout=120)


def written(model: LocalModel, **options: Any) -> Any:
    return model.transcribe(SOUND, **{"language": "en", "temperature": 0.0001, **options})


@pytest.mark.parametrize("form", TYPES)
def test_python_and_http_give_the_same_transcript(
    server: RunningServer, model: LocalModel, form: str
) -> None:
    answer = post(server, **COLD, response_format=form)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith(TYPES[form])
    expected = written(model)
    if "json" not in form:
        assert answer.text == expected.format(form) and expected.text
        return
    found, reported = answer.json(), json.loads(expected.format(form))
    assert found.pop("usage") == {"type": "duration", "seconds": 1.7}
    assert found.keys() == reported.keys()
    if form == "json":
        assert found == reported and expected.text
        return
    assert (found["text"], found["language"], found["duration"]) == (
        reported["text"],
        "english",
        1.7,
    )
    assert len(found["segments"]) == len(reported["segments"]) > 0
    for ours, theirs in zip(found["segments"], reported["segments"], strict=True):
        assert ours["tokens"] == theirs["tokens"] and ours["start"] == theirs["start"]
        assert ours["avg_logprob"] == pytest.approx(theirs["avg_logprob"], abs=1e-4)


def test_fields_change_the_text(server: RunningServer, model: LocalModel) -> None:
    plain = written(model).text
    assert post(server, **COLD).json()["text"] == plain
    translated = post(server, "translations", **COLD).json()["text"]
    assert translated == written(model, task="translate").text != plain
    german = post(server, **{**COLD, "language": "German"}).json()["text"]
    assert german == written(model, language="de").text != plain
    guided = post(server, **COLD, prompt="hello world").json()["text"]
    assert guided == written(model, prompt="hello world").text != plain
    transcript = post(server, temperature="0.0001", response_format="verbose_json").json()
    expected = written(model, language=None)
    assert transcript["text"] == expected.text and transcript["language"]
    texts = {post(server, language="en", temperature="1.9").json()["text"] for _ in range(5)}
    assert len(texts) > 1


@pytest.mark.parametrize("form", ["FLAC", "OGG", "MP3"])
def test_files_of_any_kind(server: RunningServer, model: LocalModel, form: str) -> None:
    data = file_of(form=form)
    expected = model.transcribe(data, language="en", temperature=0.0001).text
    assert post(server, data=data, **COLD).json()["text"] == expected


def test_a_stream_gives_the_text_in_pieces(server: RunningServer, model: LocalModel) -> None:
    data = file_of(4.2)
    lines = post(server, data=data, **COLD, stream="true").text.splitlines()
    events = [json.loads(x.removeprefix("data: ")) for x in lines if x.startswith("data: ")]
    expected = model.transcribe(data, language="en", temperature=0.0001)
    *pieces, done = events
    assert {piece["type"] for piece in pieces} == {"transcript.text.delta"}
    assert [piece["delta"].strip() for piece in pieces] == [
        s.text.strip() for s in expected.segments
    ]
    assert "".join(piece["delta"] for piece in pieces) == expected.text
    assert (done["type"], done["text"]) == ("transcript.text.done", expected.text)
    assert done.keys() == {"type", "text", "usage"}
    assert len(pieces) > 1


@pytest.mark.parametrize(
    "fields",
    [
        {"adapter": "nobody"},
        {"adapters": "nobody"},
        {"adapters": '[{"name": "nobody", "scale": 0.5}]'},
        {"model": "whisper:nobody"},
        {"adapter": "nobody", "stream": "true"},
    ],
)
def test_requests_select_adapters(server: RunningServer, fields: dict[str, str]) -> None:
    answer = post(server, **COLD, **fields)
    assert answer.status_code == 404, answer.text
    error = answer.json()["error"]
    assert error["code"] == "adapter_not_found" and "'nobody'" in error["message"]
    assert post(server, **COLD, adapters="[]").status_code == 200


def test_responses_list_adapters(server: RunningServer, model: LocalModel, folder: Path) -> None:
    generation = model.load_adapter("accent", folder.parent / "accent").generation
    expected, plain = written(model, adapters=["accent"]), written(model)
    assert expected.text != plain.text and plain.generations is None
    assert expected.generations == [generation]
    model.unload_adapter("accent")
    for form in TYPES:
        reported = {"adapter_generations": [generation]} if "json" in form else {}
        header = None if reported else generation
        answer = post(server, **COLD, response_format=form, adapter="accent")
        assert answer.headers.get("x-adapter-generations") == header
        if reported:
            assert answer.json().items() >= {"text": expected.text, **reported}.items()
        else:
            assert answer.text == expected.format(form)
        base = post(server, **COLD, response_format=form)
        assert "x-adapter-generations" not in base.headers
        assert "generations" not in base.text and generation not in base.text
    lines = post(server, **COLD, model="accent", stream="true").text.splitlines()
    done = json.loads([x for x in lines if x.startswith("data: ")][-1].removeprefix("data: "))
    assert (done["text"], done["adapter_generations"]) == (expected.text, [generation])
    mute = '[{"name": "accent", "scale": 0}]'
    muted = post(server, **COLD, adapters=mute).json()
    assert (muted["text"], muted["adapter_generations"]) == (plain.text, [])


def test_no_model_needs_to_be_named(server: RunningServer) -> None:
    texts = {post(server, **COLD, **model).text for model in ({"model": "whisper"}, {})}
    assert len(texts) == 1 and post(server, **COLD, model="default").text in texts


FIELDS: list[tuple[dict[str, str], int, str, str | None]] = [
    ({"model": "tiny"}, 404, "model 'tiny' not found", "model"),
    ({"model": "text"}, 400, "not transcribe; use whisper", "model"),
    ({"language": "elvish"}, 400, "does not support the language 'elvish'", "language"),
    ({"temperature": "warm"}, 400, "temperature: Expected `float", "temperature"),
    ({"temperature": "nan"}, 400, "temperature", "temperature"),
    ({"temperature": "-1"}, 400, "not within 0..2", "temperature"),
    ({"temperature": "5"}, 400, "not within 0..2", "temperature"),
    ({"response_format": "diarized_json"}, 400, "use verbose_json", "response_format"),
    ({"response_format": "xml"}, 400, "expected one of json", "response_format"),
    ({"response_format": "srt", "stream": "true"}, 400, "cannot be streamed", "response_format"),
    (
        {"timestamp_granularities[]": "word"},
        400,
        "requires response_format verbose_json",
        "timestamp_granularities",
    ),
    ({"timestamp_granularities": "letter"}, 400, "Invalid enum", "timestamp_granularities[0]"),
    ({"include[]": "words"}, 400, "Invalid enum value 'words'", "include[0]"),
    (
        {"include[]": "logprobs", "response_format": "text"},
        400,
        "requires response_format json",
        "include",
    ),
    ({"chunking_strategy[type]": "server_vad"}, 400, "only auto", "chunking_strategy"),
    ({"chunking_strategy": "vad"}, 400, "only auto", "chunking_strategy"),
    ({"languages[]": "de"}, 400, "either language or languages", "languages"),
    ({"known_speaker_names[]": "a"}, 400, "recognition of speakers", "known_speaker_names"),
    (
        {"known_speaker_references[]": "a"},
        400,
        "recognition of speakers",
        "known_speaker_references",
    ),
    ({"metadata": "a"}, 400, "unknown field 'metadata'", "metadata"),
    ({"adapters": "[1"}, 400, "adapters is not valid JSON", "adapters"),
    ({"prompt[a]": "b"}, 400, "prompt: Expected `str", "prompt"),
    ({"stream": "maybe"}, 400, "stream: Expected `bool`", "stream"),
    ({"langage": "en"}, 400, "unknown field 'langage'; nearest: language", "langage"),
    ({"file": "a.wav"}, 400, "file", "file"),
]


@pytest.mark.parametrize(("fields", "status", "message", "param"), FIELDS)
def test_bad_fields_then_good(
    server: RunningServer, fields: dict[str, str], status: int, message: str, param: str | None
) -> None:
    answer = post(server, **{**COLD, **fields})
    refused(answer, status, message, param)
    assert post(server, data=SHORT, **COLD).status_code == 200


def refused(answer: httpx.Response, status: int, message: str, param: str | None) -> None:
    error = answer.json()["error"]
    assert answer.status_code == status and message in error["message"], answer.text
    assert error["param"] == param and error["type"] == "invalid_request_error"


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, _strict_response_validation=True
    ) as found:
        yield found


CALL: dict[str, Any] = {"file": ("a.wav", SOUND), "model": "whisper", "temperature": 0.0001}


def test_the_client_reads_logprobs(client: openai.OpenAI, model: LocalModel) -> None:
    created = client.audio.transcriptions.create
    expected = written(model, logprobs=True)
    tokens = [each for segment in expected.segments for each in segment.logprobs]
    found = created(**CALL, language="en", include=["logprobs"], chunking_strategy="auto")
    assert found.logprobs and found.usage and found.usage.type == "duration"
    data = b"".join(bytes(map(int, each.bytes or [])) for each in found.logprobs)
    assert data.decode(errors="replace").strip() == found.text == expected.text
    given = [each.logprob for each in found.logprobs]
    assert given == pytest.approx([each.logprob for each in tokens], abs=1e-4)
    assert all(value is not None and value <= 0 for value in given) and len(set(given)) > 1
    plain = created(**CALL, language="en")
    assert plain.logprobs is None and plain.text == found.text


def test_the_client_streams_a_transcript(client: openai.OpenAI) -> None:
    long = {**CALL, "file": ("a.wav", file_of(4.2)), "language": "en", "prompt": "hello"}
    events = list(client.audio.transcriptions.create(**long, stream=True, include=["logprobs"]))
    *pieces, done = events
    assert done.type == "transcript.text.done" and done.usage
    deltas = [e for e in pieces if e.type == "transcript.text.delta"]
    assert done.text == "".join(e.delta for e in deltas).strip() and len(deltas) > 1
    details = done.usage.input_token_details
    assert details and (details.audio_tokens, details.text_tokens) == (210, len(" hello"))
    assert done.usage.input_tokens == 210 + len(" hello")
    assert done.usage.output_tokens > 0
    assert done.usage.total_tokens == done.usage.input_tokens + done.usage.output_tokens
    parts = [x.logprob for e in deltas for x in e.logprobs or []]
    assert done.logprobs and parts == [x.logprob for x in done.logprobs]


def test_the_client_restricts_languages_and_gives_keywords(
    client: openai.OpenAI, model: LocalModel
) -> None:
    created = client.audio.transcriptions.create
    for code in ("de", "fr"):
        found = created(**CALL, languages=[code])
        assert found.text == written(model, language=code).text
        assert [each.code for each in found.languages or []] == [code]
    either = created(**CALL, languages=["de", "fr"]).languages or []
    assert len(either) == 1 and either[0].code in ("de", "fr")
    words = created(**CALL, language="en", keywords=["hello", "world"], prompt="Yes")
    assert words.text == written(model, prompt="hello, world. Yes").text != written(model).text


def test_the_client_reads_words(client: openai.OpenAI, model: LocalModel) -> None:
    both = {**CALL, "language": "en", "response_format": "verbose_json"}
    expected = written(model, words=True).words
    for granularities in (["word"], ["segment", "word"]):
        found = client.audio.transcriptions.create(**both, timestamp_granularities=granularities)
        assert [each.model_dump() for each in found.words] == msgspec.to_builtins(expected)
        assert (found.segments is None) == (granularities == ["word"])
    assert expected and all(0 <= each.start <= each.end <= 1.7 for each in expected)
    plain = client.audio.transcriptions.create(**both)
    assert plain.words is None and plain.segments and plain.text == found.text


def test_the_client_reads_every_format(client: openai.OpenAI, server: RunningServer) -> None:
    verbose = client.audio.transcriptions.create(
        **CALL, language="en", response_format="verbose_json", timestamp_granularities=["segment"]
    )
    assert verbose.segments and verbose.usage and verbose.usage.seconds == verbose.duration == 1.7
    text = client.audio.transcriptions.create(**CALL, language="en", response_format="text")
    assert str(text).strip() == verbose.text
    with pytest.warns(DeprecationWarning):
        translated = client.audio.translations.create(**CALL, response_format="verbose_json")
    assert translated.segments and translated.duration == 1.7

    async def transcribe() -> str:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none", _strict_response_validation=True
        ) as other:
            return (await other.audio.transcriptions.create(**CALL, language="en")).text

    assert asyncio.run(transcribe()) == verbose.text


FILES = {
    "empty": (b"", "audio file cannot be read"),
    "text": (b"hello, this is no sound", "audio file cannot be read"),
    "truncated": (SOUND[: len(SOUND) // 2], "truncated"),
    "header": (SOUND[:44], "truncated"),
    "truncated-flac": (file_of(form="FLAC")[:5000], "cannot be read"),
    "short": (file_of(0.05), "expected at least 0.1 s"),
    "picture": (b"\x89PNG\r\n\x1a\n" + bytes(100), "audio file cannot be read"),
}


@pytest.mark.parametrize("name", FILES)
def test_bad_files_then_good(server: RunningServer, name: str) -> None:
    data, message = FILES[name]
    refused(post(server, data=data, **COLD), 400, message, "file")
    refused(post(server, data=data, **COLD, stream="true"), 400, message, "file")
    assert post(server, data=SHORT, **COLD).status_code == 200


def test_malformed_forms_are_rejected(server: RunningServer) -> None:
    url = f"{server.url}/v1/audio/transcriptions"
    text = {"language": (None, "en")}
    two = [("file", ("a.wav", SOUND)), ("file", ("b.wav", SOUND))]
    multipart = {"content-type": "multipart/form-data; boundary=x"}
    twice = [("language", (None, "en")), ("language", (None, "de")), ("file", ("a.wav", SOUND))]
    mixed = [("language", (None, "en")), ("language[]", (None, "de")), ("file", ("a.wav", SOUND))]
    odd = [("prompt", (None, b"\xff\xfe")), ("file", ("a.wav", SHORT))]
    bad: list[tuple[dict[str, Any], int, str]] = [
        ({"json": {"file": "a.wav"}}, 415, "send multipart/form-data"),
        ({"data": {"file": "a.wav"}}, 415, "send multipart/form-data"),
        ({"content": b""}, 415, "send multipart/form-data"),
        ({"files": text}, 400, "field file is missing"),
        ({"files": two}, 400, "several files are not supported; send one"),
        ({"files": twice}, 400, "duplicate field language"),
        ({"files": mixed}, 400, "duplicate field language"),
        (
            {"files": {"file": ("a.wav", SOUND), "model": ("m", b"x")}},
            400,
            "expected text, got a file",
        ),
        ({"files": {"prompt": (None, "x" * (2 << 20))}}, 400, "the form is malformed"),
        ({"files": {f"f{i}": (None, "x") for i in range(40)}}, 400, "the form is malformed"),
        ({"content": b"--x\r\nnothing", "headers": multipart}, 400, ""),
        ({"content": b"", "headers": {"content-type": "multipart/form-data"}}, 400, "boundary"),
        ({"content": b"nothing", "headers": multipart}, 400, ""),
        ({"files": odd}, 200, ""),
    ]
    for body, status, message in bad:
        answer = httpx.post(url, timeout=60, **body)
        assert answer.status_code == status and message in answer.text, (message, answer.text)
        assert post(server, data=SHORT, **COLD).status_code == 200
    assert httpx.get(url).status_code == 405


def test_a_form_that_is_too_large(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from ostro.entrypoints.http import body

    monkeypatch.setattr(body, "MAX_FORM", 1 << 20)
    answer = post(server, data=bytes(3 << 20), **COLD)
    assert answer.status_code == 413 and "1048576 bytes" in answer.text
    assert post(server, data=SHORT, **COLD).status_code == 200
