"""Pictures: from Python, from the command line and over HTTP, the same as the model draws alone."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
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
from ostro.core.records import Settings
from ostro.core.step import ROWS
from ostro.entrypoints.cli import main
from ostro.entrypoints.local_model import LocalModel

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
        ({"response_format": "url"}, "b64_json"),
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
    streamed = server.post(path, **asked, adapter="ink", stream=True, partial_images=1)
    lines = [x for x in streamed.text.splitlines() if x.startswith("data: ")]
    named = [json.loads(x.removeprefix("data: ")).get("adapter_generations") for x in lines]
    assert len(named) > 2 and named == [None] * (len(named) - 1) + [drawn["adapter_generations"]]


def test_a_part_that_is_not_there(folder: Path, tmp_path: Path) -> None:
    import shutil

    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    shutil.rmtree(broken / "vae")
    with pytest.raises(CheckpointError, match="'vae'"):
        ostro.load(broken)
