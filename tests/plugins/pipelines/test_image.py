"""Pictures: from Python, from the command line and over HTTP, the same as the model draws alone."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch
from PIL import Image
from tiny.flux import make_flux
from tiny.server import RunningServer, serving
from tiny.trained import draw

import ostro
from ostro.core.errors import AdapterNotFound, CheckpointError, RequestError
from ostro.core.load.model import load_model
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.core.step import ROWS
from ostro.entrypoints.cli import main
from ostro.entrypoints.python.model import LocalModel

ASKED: dict[str, Any] = {"width": 32, "height": 48, "steps": 3, "seed": 7, "guidance": 2.0}
PROMPT = "hello world"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("diffusers")
    return make_flux(tmp_path_factory.mktemp("models") / "flux")


@pytest.fixture(scope="module")
def adapter(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter of the transformer, saved as diffusers does."""
    import diffusers
    import peft

    transformer = diffusers.FluxTransformer2DModel.from_pretrained(folder / "transformer")
    transformer.add_adapter(peft.LoraConfig(r=4, target_modules=["to_q", "to_v", "proj_out"]))
    draw(transformer, std=0.5)
    made = tmp_path_factory.mktemp("adapters") / "ink"
    layers = peft.get_peft_model_state_dict(transformer)
    diffusers.FluxPipeline.save_lora_weights(made, transformer_lora_layers=layers)
    return made


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[LocalModel]:
    with ostro.load(folder, dtype="float32") as made:
        assert isinstance(made, LocalModel)
        yield made


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[np.ndarray]:
    """What the model draws when nothing stands between it and its request."""
    from ostro.architectures.flux.inputs import Inputs
    from ostro.architectures.flux.request import Drawing

    plugins = PluginManager()
    plugins.load()
    loaded = load_model(folder, Settings(dtype="float32"), plugins)
    clip, t5 = Inputs(loaded.raw_config, folder).texts(PROMPT)
    sizes = {name: ASKED[name] for name in ("width", "height", "steps", "guidance")}
    drawing = Drawing(clip_tokens=[clip] * 2, t5_tokens=[t5] * 2, seeds=[7, 8], **sizes)
    with torch.inference_mode():
        *_, images = loaded.model.draw(drawing, ROWS)  # type: ignore[operator]
    return list(images.numpy())


def close(image: Any, expected: np.ndarray) -> bool:
    """Equal but for rounding: one picture alone is not summed as two together are."""
    return np.abs(np.asarray(image).astype(int) - expected.astype(int)).max() <= 1


def test_python_draws_what_the_model_draws(model: LocalModel, expected: list[np.ndarray]) -> None:
    reported: list[tuple[int, int, int]] = []
    images = model.draw(
        PROMPT,
        progress=lambda i, n, shown: reported.append((i, n, len(shown))),
        **ASKED,
    )
    assert len(images) == 1 and images[0].size == (32, 48)
    assert close(images[0], expected[0])
    assert [done for done, _, _ in reported] == sorted(done for done, _, _ in reported)
    assert reported[-1][0] == reported[-1][1]
    two = model.draw(PROMPT, n=2, previews=1, **ASKED)
    assert all(close(image, want) for image, want in zip(two, expected, strict=True))
    assert not close(two[0], expected[1])
    assert not close(model.draw("another text", **ASKED)[0], expected[0])


def test_a_picture_to_start_from(model: LocalModel, expected: list[np.ndarray]) -> None:
    start = Image.new("RGB", (64, 64), (200, 30, 30))
    near = model.draw(PROMPT, image=start, strength=0.34, **ASKED)[0]
    assert near.size == (32, 48) and not close(near, expected[0])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"width": 33}, "width=33 is not a multiple"),
        ({"steps": 0}, "steps=0 is not within"),
        ({"n": 11}, "n=11 is not within"),
        ({"seed": -1}, "seed=-1"),
        ({"colour": "red"}, "unknown option colour"),
        ({"width": 100_000}, "width"),
        ({"strength": 0.5}, "strength requires an image"),
    ],
)
def test_a_rejected_request_leaves_the_next_working(
    model: LocalModel, expected: list[np.ndarray], given: dict[str, Any], said: str
) -> None:
    with pytest.raises(RequestError, match=said):
        model.draw(PROMPT, **{**ASKED, **given})
    with pytest.raises(RequestError, match="the prompt is empty"):
        model.draw(" ", **ASKED)
    assert close(model.draw(PROMPT, **ASKED)[0], expected[0])


def test_the_command_writes_files(
    folder: Path, expected: list[np.ndarray], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.png"
    options = ["--size", "32x48", "--steps", "3", "--seed", "7", "--guidance", "2", "-n", "2"]
    common = ["draw", "-m", str(folder), PROMPT, "-o", str(out), "--dtype", "float32"]
    assert main([*common, *options]) == 0
    paths = [tmp_path / "a-1.png", tmp_path / "a-2.png"]
    assert capsys.readouterr().out.split() == [str(path) for path in paths]
    for path, want in zip(paths, expected, strict=True):
        assert close(Image.open(path), want)
    assert main([*common, "--size", "large"]) == 2
    assert "--size" in capsys.readouterr().err


def test_requests_select_adapters(
    model: LocalModel, adapter: Path, expected: list[np.ndarray]
) -> None:
    assert model.adapters == []
    with pytest.raises(AdapterNotFound, match="'nobody'"):
        model.draw(PROMPT, adapters={"nobody": 0.5}, **ASKED)
    model.load_adapter("ink", adapter)
    whole, half, none = (
        model.draw(PROMPT, adapters={"ink": scale}, **ASKED)[0] for scale in (1, 0.5, 0)
    )
    assert not close(whole, expected[0]) and not close(half, expected[0])
    assert not close(whole, np.asarray(half)) and close(none, expected[0])
    model.unload_adapter("ink")
    assert close(model.draw(PROMPT, **ASKED)[0], expected[0])


@pytest.fixture(scope="module")
def server(folder: Path, adapter: Path) -> Iterator[RunningServer]:
    known: dict[str, Any] = {"adapters": (f"ink={adapter}",), "adapter_root": str(adapter.parent)}
    with serving(Settings(reference=str(folder), dtype="float32", **known)) as running:
        yield running


def unpacked(text: str) -> Image.Image:
    return Image.open(BytesIO(base64.b64decode(text)))


def test_http_gives_the_same_image(server: RunningServer, expected: list[np.ndarray]) -> None:
    asked = {"prompt": PROMPT, "size": "32x48", "steps": 3, "seed": 7, "guidance": 2.0, "n": 2}
    answer = server.post("/v1/images/generations", **asked)
    assert answer.status_code == 200, answer.text
    images = [unpacked(entry["b64_json"]) for entry in answer.json()["data"]]
    assert all(close(image, want) for image, want in zip(images, expected, strict=True))
    streamed = server.post(
        "/v1/images/generations", **{**asked, "n": 1}, stream=True, partial_images=2
    )
    lines = [x for x in streamed.text.splitlines() if x.startswith("data: ")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    kinds = [event["type"].removeprefix("image_generation.") for event in events]
    assert kinds[-1] == "completed" and "partial_image" in kinds
    assert close(unpacked(events[-1]["b64_json"]), expected[0])
    for bad, said in (
        ({"size": "wide"}, "size"),
        ({"steps": 5000}, "steps"),
        ({"colour": 1}, "unknown field"),
        ({"adapter": "nobody"}, "'nobody'"),
        ({"adapter": "nobody", "stream": True}, "'nobody'"),
    ):
        refused = server.post("/v1/images/generations", **{**asked, **bad})
        assert refused.status_code in (400, 404, 501), refused.text
        assert said in refused.json()["error"]["message"]
    chat = server.post("/v1/chat/completions", messages=[{"role": "user", "content": "a"}])
    assert chat.status_code == 400 and "supports draw, not text" in chat.text
    assert server.post("/v1/images/generations", **asked).status_code == 200


def test_http_responses_list_adapters(server: RunningServer, expected: list[np.ndarray]) -> None:
    path = "/v1/images/generations"
    asked = {"prompt": PROMPT, "size": "32x48", "steps": 3, "seed": 7, "guidance": 2.0}
    assert "adapter_generations" not in server.post(path, **asked).json()
    drawn = server.post(path, **asked, adapter="ink").json()
    [known] = server.get("/v1/lora_adapters").json()["data"]
    assert drawn["adapter_generations"] == [known["generation"]]
    assert not close(unpacked(drawn["data"][0]["b64_json"]), expected[0])
    mute = server.post(path, **asked, adapter={"name": "ink", "scale": 0}).json()
    assert mute["adapter_generations"] == []
    assert close(unpacked(mute["data"][0]["b64_json"]), expected[0])
    more = {"stream": True, "partial_images": 1, "progress": True}
    streamed = server.post(path, **asked, **more, adapter="ink")
    lines = [x for x in streamed.text.splitlines() if x.startswith("data: ")]
    named = [json.loads(x.removeprefix("data: ")).get("adapter_generations") for x in lines]
    assert len(named) > 2 and named == [None] * (len(named) - 1) + [drawn["adapter_generations"]]


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, _strict_response_validation=True
    ) as found:
        yield found


CALL: dict[str, Any] = {
    "prompt": PROMPT,
    "size": "32x48",
    "extra_body": {"steps": 3, "seed": 7, "guidance": 2.0},
}
EDIT = {**CALL, "extra_body": {**CALL["extra_body"], "strength": 0.34}}
PATCHES = 2 * 32 * 48 // 8**2
"""Tokens of two images; the tiny model has patches of eight pixels."""


def file_of(image: Image.Image, format: str = "PNG") -> bytes:
    file = BytesIO()
    image.save(file, format)
    return file.getvalue()


START = Image.new("RGB", (64, 64), (200, 30, 30))


def test_the_client_generates_images(client: openai.OpenAI, expected: list[np.ndarray]) -> None:
    drawn = client.images.generate(**CALL, n=2, background="auto", moderation="low", user="team")
    for entry, want in zip(drawn.data or [], expected, strict=True):
        assert close(unpacked(str(entry.b64_json)), want)
    assert (drawn.size, drawn.background, drawn.output_format) == ("32x48", "opaque", "png")
    assert (drawn.quality, drawn.safety_identifier) == (None, "team") and drawn.usage is not None
    assert drawn.usage.input_tokens == drawn.usage.input_tokens_details.text_tokens > 0
    assert drawn.usage.output_tokens == PATCHES
    assert drawn.usage.total_tokens == drawn.usage.input_tokens + PATCHES
    sizes = []
    for format, level in (("jpeg", None), ("webp", None), ("jpeg", 5), ("webp", 0)):
        options: Any = {} if level is None else {"output_compression": level}
        one = client.images.generate(**CALL, output_format=format, quality="hd", **options)
        assert (one.quality, one.output_format) == ("high", format) and one.data
        data = base64.b64decode(one.data[0].b64_json or "")
        assert Image.open(BytesIO(data)).format == format.upper()
        sizes.append(len(data))
    assert sizes[2] < sizes[0] and sizes[3] < sizes[1]


def test_the_client_streams_images(client: openai.OpenAI, expected: list[np.ndarray]) -> None:
    events = list(client.images.generate(**CALL, n=2, stream=True, partial_images=2, quality="low"))
    kinds = [event.type.removeprefix("image_generation.") for event in events]
    previews = kinds.count("partial_image")
    assert kinds == ["partial_image"] * previews + ["completed"] * 2 and previews == 4
    assert [getattr(event, "partial_image_index", None) for event in events[:4]] == [0, 0, 1, 1]
    assert {(event.quality, event.background) for event in events} == {("low", "opaque")}
    *_, first, second = events
    assert first.type == second.type == "image_generation.completed"
    for event, want in zip((first, second), expected, strict=True):
        assert close(unpacked(event.b64_json), want) and event.size == "32x48"
    assert first.usage.output_tokens + second.usage.output_tokens == PATCHES
    assert first.usage.input_tokens > second.usage.input_tokens == 0


def test_the_async_client_generates_images(
    server: RunningServer, expected: list[np.ndarray]
) -> None:
    async def generate() -> None:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none", _strict_response_validation=True
        ) as client:
            drawn = await client.images.generate(**CALL)
            assert drawn.data and close(unpacked(str(drawn.data[0].b64_json)), expected[0])
            events = await client.images.generate(**CALL, stream=True)
            assert [event.type async for event in events] == ["image_generation.completed"]

    asyncio.run(generate())


def test_an_image_is_a_file_with_an_end(client: openai.OpenAI, expected: list[np.ndarray]) -> None:
    drawn = client.images.generate(**CALL, response_format="url", output_format="webp")
    assert drawn.data and drawn.data[0].b64_json is None
    content = httpx.get(str(drawn.data[0].url))
    assert content.status_code == 200 and Image.open(BytesIO(content.content)).format == "WEBP"
    [file] = client.files.list(purpose="vision").data
    assert file.expires_at == file.created_at + 3600 and file.filename == "image-1.webp"
    client.files.delete(file.id)
    assert httpx.get(str(drawn.data[0].url)).status_code == 404


def test_a_batch_contains_images(client: openai.OpenAI, expected: list[np.ndarray]) -> None:
    url = "/v1/images/generations"
    body = {"prompt": PROMPT, "size": "32x48", **CALL["extra_body"]}
    bodies = {"a": {**body, "n": 2}, "b": {**body, "response_format": "url"}}
    lines = [
        json.dumps({"custom_id": id, "method": "POST", "url": url, "body": body})
        for id, body in bodies.items()
    ]
    file = client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")
    endpoint: Any = url  # which the client's types lack
    batch = client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")
    end = time.monotonic() + 60
    while (batch := client.batches.retrieve(batch.id)).status != "completed":
        assert time.monotonic() < end, batch
        time.sleep(0.05)
    assert batch.request_counts is not None and batch.usage is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 1)
    assert batch.usage.output_tokens == PATCHES
    result = json.loads(client.files.content(batch.output_file_id or "").text)
    images = [unpacked(entry["b64_json"]) for entry in result["response"]["body"]["data"]]
    assert all(close(image, want) for image, want in zip(images, expected, strict=True))
    failed = json.loads(client.files.content(batch.error_file_id or "").text)
    error = failed["response"]["body"]["error"]
    assert (failed["custom_id"], error["param"]) == ("b", "response_format")
    assert "batch" in error["message"] and "b64_json" in error["message"]


def test_the_client_edits_an_image(client: openai.OpenAI, model: LocalModel) -> None:
    want = np.asarray(model.draw(PROMPT, image=START, strength=0.34, **ASKED)[0])
    edited = client.images.edit(**EDIT, image=("a.png", file_of(START)))
    assert edited.data and close(unpacked(str(edited.data[0].b64_json)), want)
    assert edited.usage and edited.usage.input_tokens_details.image_tokens == PATCHES // 2
    events = list(client.images.edit(**EDIT, image=[file_of(START)], stream=True, partial_images=1))
    # A preview is left out if the next step ends before it is sent.
    assert [event.type for event in events[:-1]] in ([], ["image_edit.partial_image"])
    assert events[-1].type == "image_edit.completed"
    assert close(unpacked(events[-1].b64_json), want)
    tiny = client.images.edit(**EDIT, image=file_of(START.resize((1, 1)), "BMP"))
    assert tiny.data and close(unpacked(str(tiny.data[0].b64_json)), want)
    with (
        pytest.warns(DeprecationWarning),
        pytest.raises(openai.BadRequestError, match="/v1/images/edits") as raised,
    ):
        client.images.create_variation(image=file_of(START))
    assert raised.value.code == "unsupported"


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": 7}, "prompt", "prompt: Expected `str`"),
    ({"prompt": " "}, "prompt", "empty"),
    ({"n": "two"}, "n", "n: Expected `int"),
    ({"n": 11}, "n", "not within 1..10"),
    ({"size": 64}, "size", "size: Expected `str"),
    ({"size": "0x16"}, "size", "pixels"),
    ({"size": "99999x99999"}, "size", "pixels"),
    ({"quality": "best"}, "quality", "Invalid enum value 'best'"),
    ({"background": "transparent"}, "background", "use opaque or auto"),
    ({"moderation": "none"}, "moderation", "Invalid enum value 'none'"),
    ({"style": "vivid"}, "style", "not supported"),
    ({"complexity": "low"}, "complexity", "not supported"),
    ({"frame_count": 3}, "frame_count", "not supported"),
    ({"frame_duration_ms": 30}, "frame_duration_ms", "not supported"),
    ({"svg": {"model": "a"}}, "svg", "not supported"),
    ({"output_format": "gif"}, "output_format", "use png, jpeg, webp"),
    ({"output_format": "tiff"}, "output_format", "Invalid enum value 'tiff'"),
    ({"output_compression": 50}, "output_compression", "no effect on png"),
    (
        {"output_compression": 101, "output_format": "jpeg"},
        "output_compression",
        "not within 0..100",
    ),
    ({"partial_images": 1}, "partial_images", "requires stream"),
    ({"partial_images": 51, "stream": True}, "partial_images", "not within 0..50"),
    ({"progress": True}, "progress", "requires stream"),
    ({"stream": "yes"}, "stream", "stream: Expected `bool`"),
    ({"stream": True, "response_format": "url"}, "response_format", "use b64_json"),
    ({"user": 7}, "user", "user: Expected `str"),
    ({"safety_identifier": []}, "safety_identifier", "safety_identifier: Expected"),
    ({"seed": -1}, "seed", "seed=-1"),
    ({"strength": 0.5}, "strength", "unknown field"),
    ({"metadata": {}}, "metadata", "unknown field"),
]


def test_bad_generations_then_good(server: RunningServer) -> None:
    path, good = "/v1/images/generations", {"prompt": PROMPT, "size": "16x16", "steps": 1}
    for fields, param, message in BAD:
        refused = server.post(path, **{**good, **fields})
        error = refused.json()["error"]
        assert (refused.status_code, error["param"]) == (400, param), refused.text
        assert message in error["message"]
    assert server.post(path, **good).status_code == 200


def test_bad_edits_then_good(server: RunningServer) -> None:
    url, good = f"{server.url}/v1/images/edits", {"prompt": PROMPT, "size": "16x16", "steps": "2"}
    picture = file_of(START)
    bomb = file_of(Image.new("1", (10_000, 10_000)))
    cases: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
        ({}, {"image": b""}, "image", "cannot be read"),
        ({}, {"image": b"hello"}, "image", "cannot be read"),
        ({}, {"image": picture[:60]}, "image", "cannot be read"),
        ({}, {"image": bomb}, "image", "million pixels"),
        ({}, {"image": bytes((50 << 20) + 1)}, "image", "exceeds 52428800 bytes"),
        ({}, {"mask": picture}, "mask", "inpainting is not supported"),
        ({}, {"markup": picture}, "markup", "not supported"),
        ({}, {"prompt": picture}, "prompt", "expected text, got a file"),
        ({}, {"other": picture}, "other", "unknown field 'other'"),
        ({"input_fidelity": "high"}, {}, "input_fidelity", "use strength"),
        ({"strength": "half"}, {}, "strength", "strength: Expected `float"),
        ({"strength": "7"}, {}, "strength", "strength=7"),
        ({"n": "1.5"}, {}, "n", "n: Expected `int"),
        ({"stream": "perhaps"}, {}, "stream", "stream: Expected `bool`"),
        ({"svg[model]": "a"}, {}, "svg", "not supported"),
        ({"adapters": "[1"}, {}, "adapters", "not valid JSON"),
        ({f"f{i}": "x" for i in range(33)}, {}, "", "the form is malformed"),
    ]
    for fields, files, param, message in cases:
        sent = {name: ("a.png", data) for name, data in {"image": picture, **files}.items()}
        refused = httpx.post(url, data={**good, **fields}, files=sent, timeout=60)
        error = refused.json()["error"]
        assert (refused.status_code, error["param"] or "") == (400, param), (param, refused.text)
        assert message in error["message"]
    two = [("image[]", ("a.png", picture))] * 2
    assert "send one" in httpx.post(url, data=good, files=two).json()["error"]["message"]
    missing = httpx.post(url, data=good, files={"mask": ("a.png", b"")}).json()["error"]
    assert missing["param"] in ("image", "mask")
    fine = httpx.post(url, data=good, files={"image": ("a.png", picture)}, timeout=60)
    assert fine.status_code == 200, fine.text


def test_a_client_that_leaves_ends_the_work(server: RunningServer) -> None:
    asked = {"prompt": PROMPT, "size": "64x64", "steps": 400, "stream": True, "progress": True}
    with httpx.stream("POST", f"{server.url}/v1/images/generations", json=asked) as answer:
        next(answer.iter_lines())
    quick = server.post("/v1/images/generations", prompt=PROMPT, size="16x16", steps=1)
    assert quick.status_code == 200


def test_a_part_that_is_not_there(folder: Path, tmp_path: Path) -> None:
    import shutil

    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    shutil.rmtree(broken / "vae")
    with pytest.raises(CheckpointError, match="'vae'"):
        ostro.load(broken)
