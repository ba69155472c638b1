"""The number of tokens of an image by its size alone, beside that of the prepared image."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostro.core.errors import RequestError
from ostro.core.media.inputs import Inputs
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Architecture, resolve
from ostro.core.settings import Settings

SIZES = ((1, 1), (9, 9), (24, 24), (30, 45), (45, 30), (26, 70), (200, 31), (31, 200), (333, 128))
FEWER = {"idefics2": 1}
"""Tokens that an image shares with the one before it."""
SEVERAL = ("llava_onevision",)
"""Families that prepare several images in another way than one."""


def records() -> Mapping[str, Architecture]:
    plugins = PluginManager()
    plugins.load(Settings())
    found: Mapping[str, Architecture] = plugins.collect("architectures")
    return {
        name: record
        for name, record in found.items()
        if record.inputs and record.conformance and record.conformance.examples
    }


RECORDS = records()


def make(name: str, folder: Path) -> Inputs:
    """The Inputs of a tiny model, with the files that its examples write."""
    record = RECORDS[name]
    raw: dict[str, Any] = dict(record.conformance.tiny)
    next(resolve(str(record.conformance.examples))(folder, raw), None)
    made = resolve(record.inputs)(raw, folder)
    assert isinstance(made, Inputs)
    return made


@pytest.mark.parametrize("name", RECORDS)
def test_image_tokens(name: str, tmp_path: Path) -> None:
    inputs = make(name, tmp_path)
    if "image" not in inputs.placeholders:
        assert inputs.image_tokens(24, 24) is None
        return
    counted = 0
    for height, width in SIZES:
        pixels = np.zeros((height, width, 3), np.uint8)
        try:
            item = inputs.image(pixels)
        except RequestError:
            continue
        place = inputs.placeholders["image"]
        tokens = inputs.image_tokens(width, height)
        assert tokens is not None
        counted += 1
        if name in SEVERAL:
            prompt = inputs.expand_placeholders([99, place, 99, place, 99], [item, item])
            assert 2 * tokens + 3 == len(prompt.tokens)
        else:
            assert tokens == len(item.tokens) - FEWER.get(name, 0)
    assert counted > len(SIZES) // 2
