"""Questions about images from Python: files, addresses, pictures and arrays alike."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tiny.model import make_model
from tiny.pictures import address, asked, picture, saved, shown
from tiny.vision import answer, make_vision

import ostro
from ostro.core.errors import ConfigError, OstroError, RequestError, Unsupported, UsageError
from ostro.entrypoints.python.model import LocalModel

SEEN = "<|vision_start|><|image_pad|><|vision_end|>"
PROMPT = f"<|im_start|>user\n{SEEN}hello<|im_end|>\n<|im_start|>assistant\n"
WIDE, LARGE = picture(1), picture(2, 64, 64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision(tmp_path_factory.mktemp("models") / "vision")


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[LocalModel]:
    with ostro.load(folder, dtype="float32") as made:
        assert isinstance(made, LocalModel)
        yield made


def turned(image: Image.Image) -> Image.Image:
    """The image as a camera that lay on its side has it."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return Image.open(BytesIO(saved(image.transpose(Image.Transpose.ROTATE_90), exif=exif)))


def ask(model: LocalModel, *parts: Any, **sampling: Any) -> str:
    greedy = {"temperature": 0, "max_tokens": 12, **sampling}
    return model.generate([asked(*parts)], **greedy)


def test_an_image_in_any_form(model: LocalModel, tmp_path: Path) -> None:
    path, data = tmp_path / "a.png", saved(WIDE)
    path.write_bytes(data)
    expected = answer(model, PROMPT, np.asarray(WIDE))
    forms: list[dict[str, Any]] = [
        {"type": "image", "image": WIDE},
        {"type": "image", "image": WIDE.convert("RGBA")},
        {"type": "image", "image": turned(WIDE)},
        {"type": "image", "image": np.asarray(WIDE)},
        {"type": "image", "image": data},
        {"type": "image", "image": str(path)},
        {"type": "image", "path": path},
        {"type": "image", "url": address(data)},
        {"type": "input_image", "image_url": address(data)},
        shown(WIDE),
    ]
    for form in forms:
        assert ask(model, form, "hello") == expected, form.keys()


def test_images_keep_their_order(model: LocalModel) -> None:
    parts = [{"type": "image", "image": each} for each in (WIDE, LARGE)]
    prompt = PROMPT.replace(SEEN, SEEN + SEEN)
    there = ask(model, *parts, "hello")
    assert there == answer(model, prompt, np.asarray(WIDE), np.asarray(LARGE))
    assert ask(model, *reversed(parts), "hello") != there


def test_a_video_is_its_frames(model: LocalModel) -> None:
    frames = np.stack([np.asarray(picture(i, 24, 16)) for i in range(6)])
    tokens = model.encode([asked({"type": "video", "video": frames}, "hello")])
    assert tokens.count(model.tokenizer.id("<|video_pad|>")) % 3 == 0
    assert ask(model, {"type": "video", "video": frames}, "hello")


def test_logits_and_streams_see_it_too(model: LocalModel) -> None:
    message = [asked({"type": "image", "image": LARGE}, "hello")]
    prompt = model.prompt(message)
    logits = model.logits(message)
    assert len(logits) == len(prompt.tokens) and prompt.items[0].rows == 64
    rules = {"temperature": 0, "max_tokens": 1, "return_token_ids": True}
    for given in (prompt, message):
        [answer] = model.stream(given, **rules).collect()
        assert answer.tokens == [int(logits[-1].argmax())]
    other = [asked({"type": "image", "image": picture(7, 64, 64)}, "hello")]
    assert not logits[-1].allclose(model.logits(other)[-1])


def test_text_that_looks_like_a_place_is_text(model: LocalModel) -> None:
    words = f"a {SEEN} b <|image_pad|>"
    prompt = model.prompt([asked(words, shown(WIDE), words)])
    assert len(prompt.items) == 1 and prompt.items[0].rows == 15
    assert prompt.tokens.count(model.tokenizer.id("<|image_pad|>") or 0) == 15
    shown_text = model.tokenizer.decode(prompt.tokens, skip_special=False)
    assert shown_text.count(words) == 2


BAD: list[tuple[dict[str, Any], type[OstroError], str]] = [
    ({"type": "image"}, RequestError, "holds no image"),
    ({"type": "image", "image": "/no/such.png"}, UsageError, "/no/such.png: No such file"),
    ({"type": "image", "image": b"GIF89a"}, RequestError, "the image cannot be read"),
    ({"type": "image", "url": "data:;base64,###"}, RequestError, "not base64"),
    ({"type": "image", "url": "http://127.0.0.1/a.png"}, RequestError, "not a public address"),
    ({"type": "image", "image": 5}, UsageError, "5"),
    ({"type": "image", "image": np.zeros((4, 4), np.uint8)}, RequestError, "height, width, 3"),
    ({"type": "image", "image": np.zeros((8, 8, 3))}, RequestError, "uint8"),
    ({"type": "image", "image": np.zeros((0, 8, 3), np.uint8)}, RequestError, "height, width, 3"),
    ({"type": "video", "video": np.zeros((8, 8, 3), np.uint8)}, RequestError, "frames, height"),
    ({"type": "video", "video": np.zeros((0, 8, 8, 3), np.uint8)}, RequestError, "frames, height"),
    ({"type": "audio", "audio": np.zeros((2, 8))}, RequestError, r"float32 \[n\]"),
    ({"type": "audio", "audio": np.zeros(8, np.int16)}, RequestError, "got int16"),
    ({"type": "audio", "audio": np.zeros(8, np.float32)}, Unsupported, "does not support audio"),
]


@pytest.mark.parametrize(("part", "kind", "message"), BAD, ids=lambda x: str(x)[:30])
def test_a_rejected_request_leaves_the_next_working(
    model: LocalModel, part: dict[str, Any], kind: type[OstroError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        ask(model, part, "hello")
    assert ask(model, shown(WIDE), "hello") == answer(model, PROMPT, np.asarray(WIDE))


def test_too_many(model: LocalModel) -> None:
    with pytest.raises(RequestError, match="65 media in one request"):
        ask(model, *[{"type": "image", "image": WIDE}] * 65)


def test_a_model_of_text_takes_none(tmp_path: Path) -> None:
    with ostro.load(make_model(tmp_path / "tiny"), dtype="float32") as model:
        with pytest.raises(Unsupported, match="tiny accepts text only, not image"):
            ask(model, shown(WIDE), "hello")
        assert ask(model, "hello")


def test_a_folder_without_its_preprocessor(folder: Path, tmp_path: Path) -> None:
    import shutil

    bare = Path(shutil.copytree(folder, tmp_path / "bare"))
    (bare / "preprocessor_config.json").unlink()
    with ostro.load(bare, dtype="float32") as model:
        assert ask(model, "hello")
        with pytest.raises(ConfigError, match=r"preprocessor_config\.json is missing"):
            ask(model, shown(WIDE), "hello")
        assert ask(model, "hello")
