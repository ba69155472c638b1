"""`ostro run -i ... --image FILE`: a question about files, as the Python API answers it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny.pictures import asked, picture, saved
from tiny.vision import make_vision

from ostro.core.errors import ConfigError, OstroError, RequestError, Unsupported, UsageError
from ostro.entrypoints.cli.chat.attachments import kind_of
from ostro.entrypoints.python.load import load
from ostro.entrypoints.python.model import LocalModel

GREEDY = ("--temperature", "0", "-n", "12", "--dtype", "float32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision(tmp_path_factory.mktemp("models") / "vision")


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[LocalModel]:
    with load(folder, dtype="float32") as loaded:
        assert isinstance(loaded, LocalModel)
        yield loaded


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files by name: two pictures, a film, and what is neither."""
    root = tmp_path_factory.mktemp("files")
    frames = [picture(i, 24, 16) for i in range(4)]
    options = {"save_all": True, "append_images": frames[1:], "duration": 100}
    contents = {
        "a.png": saved(picture(1)),
        "b.jpg": saved(picture(2, 64, 64), "JPEG"),
        "film.gif": saved(frames[0], "GIF", **options),
        "note.txt": b"no picture at all",
        "cut.png": saved(picture(1))[:200],
    }
    for name, data in contents.items():
        (root / name).write_bytes(data)
    return {name: str(root / name) for name in (*contents, "nothing.png")}


def reply_of(model: LocalModel, *media: dict[str, str]) -> str:
    """What Python answers."""
    text = model.generate([asked(*media, "hello")], temperature=0, max_tokens=12)
    return text + "\n"


def test_images_and_a_film_come_before_the_text(
    ostro, folder: Path, model: LocalModel, files: dict[str, str]
) -> None:
    words = ("run", "-m", str(folder), *GREEDY, "-i", "hello")
    a, b = ({"type": "image", "image": files[name]} for name in ("a.png", "b.jpg"))
    one = ostro(*words, "--image", files["a.png"])
    assert (one.code, one.out) == (0, reply_of(model, a)), one.err
    two = ostro(*words, "--image", files["a.png"], "--image", files["b.jpg"])
    assert two.out == reply_of(model, a, b) != reply_of(model, b, a)
    film = ostro(*words, "--video", files["film.gif"], "--image", files["b.jpg"])
    assert film.out == reply_of(model, b, {"type": "video", "video": files["film.gif"]})
    assert ostro(*words).out == reply_of(model) != one.out


BAD: list[tuple[tuple[str, str], type[OstroError], str]] = [
    (("--image", "nothing.png"), UsageError, "nothing.png: No such file"),
    (("--image", "note.txt"), RequestError, "the image cannot be read"),
    (("--image", "cut.png"), RequestError, "the image cannot be read"),
    (("--video", "note.txt"), Unsupported, "PyAV"),
    (("--audio", "a.png"), RequestError, "audio file cannot be read"),
    (("--image", "http://127.0.0.1/a.png"), RequestError, "not a public address"),
]


@pytest.mark.parametrize(("option", "kind", "message"), BAD, ids=lambda x: str(x)[:40])
def test_bad_files(
    ostro,
    folder: Path,
    files: dict[str, str],
    option: tuple[str, str],
    kind: type[OstroError],
    message: str,
) -> None:
    if "PyAV" in message and has_av():
        pytest.skip("PyAV is installed: it is another error")
    ran = ostro(
        "run",
        "-m",
        str(folder),
        *GREEDY,
        "-i",
        "hello",
        option[0],
        files.get(option[1], option[1]),
    )
    assert ran.code == kind.exit_code and not ran.out.strip()
    last = ran.err.splitlines()[-1]
    assert last.startswith("ostro: ") and message in last and "Traceback" not in ran.err


def has_av() -> bool:
    from importlib.util import find_spec

    return find_spec("av") is not None


def test_options_that_do_not_go_together(ostro, tiny: str, files: dict[str, str]) -> None:
    ran = ostro("run", "-m", tiny, "--raw", "-i", "a", "--image", files["a.png"])
    assert ran.code == 2 and "images, audio and videos cannot be combined with --raw" in ran.err


def test_a_model_of_text_takes_none(ostro, tiny: str, files: dict[str, str]) -> None:
    ran = ostro("run", "-m", tiny, *GREEDY, "-i", "hello", "--image", files["a.png"])
    assert ran.code == Unsupported.exit_code and "accepts text only, not image" in ran.err


def test_a_model_of_text_refuses_media_before_it_reads_weights(
    ostro, tiny: str, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostro.core.engine.startup.start.open_engine", None)
    ran = ostro("run", tiny, "hello", files["a.png"])
    assert ran.code == Unsupported.exit_code and "accepts text only, not image" in ran.err


def test_files_are_positionals(
    ostro, folder: Path, model: LocalModel, files: dict[str, str], tmp_path: Path
) -> None:
    a = reply_of(model, {"type": "image", "image": files["a.png"]})
    nameless = tmp_path / "nameless"
    nameless.write_bytes(Path(files["a.png"]).read_bytes())
    for words in (
        (str(folder), "hello", files["a.png"]),
        (str(folder), files["a.png"], "hello"),
        (files["a.png"], "hello", "-m", str(folder)),
        (str(folder), files["a.png"], "-i", "hello"),
        (str(folder), "hello", str(nameless)),
    ):
        ran = ostro("run", *words[:1], *GREEDY, *words[1:])
        assert (ran.code, ran.out) == (0, a), ran.err
    both = ostro("run", str(folder), *GREEDY, "hello", files["note.txt"], files["a.png"])
    text = "File note.txt:\n\nno picture at all\n\nhello"
    image = {"type": "image", "image": files["a.png"]}
    assert both.out == model.generate([asked(image, text)], temperature=0, max_tokens=12) + "\n"


def test_wrong_positionals_are_refused(ostro, folder: Path, files: dict[str, str]) -> None:
    for words, text in (
        (("why", "is", files["a.png"]), "expected one prompt, got 'why' and 'is'"),
        (("why", "-i", "how"), "expected one prompt, got 'why', which is not a file, and -i"),
        (("why", "nothing.png"), "nothing.png: No such file"),
        (("why", "folder/nothing"), "folder/nothing: No such file"),
    ):
        ran = ostro("run", str(folder), *words)
        assert ran.code == UsageError.exit_code and text in ran.err, ran.err


KINDS = (
    ("photo.txt", b"\xff\xd8\xff\xe0 JFIF", "image"),
    ("page.jpg", b"<html>", "image"),
    ("drawing.svg", b"<svg/>", "text"),
    ("program.ts", b"let x = 1", "text"),
    ("voice", b"RIFF\x00\x00\x00\x00WAVEfmt ", "audio"),
    ("voice.m4a", b"\x00\x00\x00\x20ftypM4A ", "audio"),
    ("film", b"\x00\x00\x00\x20ftypisom", "video"),
    ("notes", b"plain", "text"),
    ("song.mp3", b"\xff\xfb\x90", "audio"),
)


@pytest.mark.parametrize(("name", "data", "kind"), KINDS, ids=[name for name, *_ in KINDS])
def test_the_kind_of_a_file(tmp_path: Path, name: str, data: bytes, kind: str) -> None:
    (tmp_path / name).write_bytes(data)
    assert kind_of(str(tmp_path / name)) == kind


def test_a_folder_without_its_preprocessor(
    ostro, folder: Path, files: dict[str, str], tmp_path: Path
) -> None:
    import shutil

    bare = shutil.copytree(folder, tmp_path / "bare")
    (bare / "preprocessor_config.json").unlink()
    words = ("run", "-m", str(bare), *GREEDY, "-i", "hello")
    ran = ostro(*words, "--image", files["a.png"])
    assert ran.code == ConfigError.exit_code and "preprocessor_config.json is missing" in ran.err
    assert ostro(*words).code == 0
