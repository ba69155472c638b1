"""`ostro transcribe`: files in, text, subtitles and JSON out."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import soundfile
from tiny.whisper import make_whisper, sound

from ostro.core.errors import RequestError, UsageError
from ostro.entrypoints.cli import transcribe


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and two sounds."""
    made = tmp_path_factory.mktemp("whisper")
    make_whisper(made)
    for name, seconds in (("a.wav", 1.3), ("b.flac", 0.5)):
        soundfile.write(made / name, sound(seconds), 16000)
    return made


def run(folder: Path, *words: str) -> int:
    parser = argparse.ArgumentParser()
    transcribe.add_arguments(parser)
    model = ["-m", str(folder), "--dtype", "float32", "--threads", "1"]
    cold = ["--language", "en", "--temperature", "0.0001"]
    return transcribe.run(parser.parse_args([*model, *cold, *words]))


def test_forms_to_the_terminal_and_to_a_file(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(folder / "a.wav"), str(folder / "b.flac")]
    assert run(folder, *files, "--format", "json") == 0
    both = [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()]
    assert len(both) == 2 and all(both)
    assert run(folder, files[0], "-o", str(tmp_path / "out.json")) == 0
    transcript = json.loads((tmp_path / "out.json").read_text("utf-8"))
    assert (transcript["text"], transcript["duration"], transcript["language"]) == (
        both[0],
        1.3,
        "english",
    )
    assert run(folder, files[0], "-o", str(tmp_path / "out.srt"), "--translate") == 0
    assert (tmp_path / "out.srt").read_text("utf-8").startswith("1\n00:00:00,")
    assert not capsys.readouterr().out


def test_what_cannot_be_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"no such file: nothing\.wav"):
        run(folder, "nothing.wav")
    with pytest.raises(UsageError, match="one FILE"):
        run(folder, str(folder / "a.wav"), str(folder / "b.flac"), "-o", "x.txt")
    with pytest.raises(RequestError, match="does not support the language 'elvish'"):
        run(folder, str(folder / "b.flac"), "--language", "elvish")
