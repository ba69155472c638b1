"""The recordings of docs/recordings: the script runs, and the pages show current images."""

from __future__ import annotations

import html
import re
import shutil
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "docs" / "recordings"))

from record import RECORDINGS, SHELL, Recording, draw, record

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "recordings"
LARGEST = 60_000
terminal = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


def words(image: str) -> str:
    """The text of an image, its lines joined."""
    found = re.findall(r"<text[^>]*>(.*?)</text>", image, re.DOTALL)
    return " ".join(html.unescape("".join(found)).replace("\xa0", " ").split())


@pytest.mark.parametrize("name", RECORDINGS)
def test_an_image_shows_the_steps_of_its_recording(name: str) -> None:
    image = (FOLDER / f"{name}.svg").read_text()
    assert len(image) < LARGEST and "http" not in image.replace("http://www.w3.org/", "")
    for line, _ in RECORDINGS[name].steps:
        assert line in words(image), f"run make recordings: {name}.svg lacks {line!r}"


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_page_shows_each_image(name: str) -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert any(f"recordings/{name}.svg)" in page.read_text() for page in pages)


def test_no_image_is_left_over() -> None:
    assert {file.stem for file in FOLDER.glob("*.svg")} == set(RECORDINGS)


@pytest.mark.process
@terminal
def test_a_screen_is_drawn_with_its_colours() -> None:
    red = r"printf '\033[38;2;200;10;20mred\033[0m %s\n' $((6 * 7))"
    recording = Recording("Colours", ((red, f"red 42{SHELL}"),), columns=80, rows=10)
    image = draw("colours", recording, record(recording))
    assert "red 42" in words(image) and "#c80a14" in image and "Colours" in image


@terminal
@pytest.mark.slow
def test_a_recording_is_made() -> None:
    recording = RECORDINGS["run"]
    screen = draw("run", recording, record(recording))
    assert "42" in words(screen) and "144" in words(screen)
