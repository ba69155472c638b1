"""Qwen2.5-VL with images that make the media worker crash, hang or exceed its memory."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ostro import Architecture, Array, Item, hookimpl
from ostro.architectures import qwen2_5_vl
from ostro.architectures.qwen2_5_vl.inputs import Inputs
from tiny.pictures import saved


def leave() -> None:
    """Exit as if killed by the system, with an array left in shared memory."""
    Array.of(np.zeros(100_000, np.uint8)).share()
    os._exit(137)


def swell() -> None:
    np.ones(1 << 40, np.uint8)


def fail() -> None:
    raise ZeroDivisionError("a bug of the plugin's own")


def chatter() -> None:
    print("x" * 100_000)
    sys.stdout.flush()
    os.write(1, b"y" * 100_000)


DEEDS: dict[str, Callable[[], object]] = {
    "leave": leave,
    "swell": swell,
    "fail": fail,
    "chatter": chatter,
    "sleep": lambda: time.sleep(60),
}


class Hostile(Inputs):
    """Inputs that misbehave; the first pixel of an image selects how."""

    def image(self, pixels: np.ndarray[Any, Any]) -> Item:
        red, green, blue = pixels[0, 0].tolist()
        if (red, green) == (255, 0) and blue < len(DEEDS):
            list(DEEDS.values())[blue]()
        return super().image(pixels)


def hostile(deed: str) -> bytes:
    """Return an image file that triggers a misbehaviour."""
    image = Image.new("RGB", (40, 24), (9, 9, 9))
    image.putpixel((0, 0), (255, 0, list(DEEDS).index(deed)))
    return saved(image)


DESCENDANTS = {os.getpid()}
"""The ids of this process and its descendants so far, since other tests may run in parallel."""


def leaked_shared_memory() -> list[Path]:
    """Return the files in shared memory of this process and its descendants."""
    parents = {int(path.parent.name): parent(path) for path in Path("/proc").glob("[0-9]*/stat")}
    for pid in parents:
        above = pid
        while above in parents and above not in DESCENDANTS:
            above = parents[above]
        if above in DESCENDANTS:
            DESCENDANTS.add(pid)
    files = Path("/dev/shm").glob("ostro-*-*")
    return [file for file in files if file.name.split("-")[1] in map(str, DESCENDANTS)]


def parent(stat: Path) -> int:
    """Return the parent of a process, 0 if it has ended."""
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@hookimpl
def ostro_architectures() -> Iterable[Architecture]:
    """Yield Qwen2.5-VL with hostile inputs."""
    found = next(iter(qwen2_5_vl.ostro_architectures()))
    yield replace(found, inputs="tiny.inputs:Hostile", replaces=True)
