"""The arrays of a job are checked where a pipeline reads them; errors name the architecture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from ostro.core.errors import PluginError
from ostro.core.messages.arrays import Array
from ostro.core.pipeline import ServedModel
from ostro.core.records import Architecture
from ostro.core.settings import Settings

MODEL = ServedModel(
    settings=Settings(),
    path=Path(),
    name="m",
    architecture=Architecture(name="draws", api=(0, 2), config="draws:C", model="draws:M"),
)
IMAGES = (None, None, None, 3)
WRONG: dict[str, tuple[Mapping[str, Array], str]] = {
    "name": ({"image": Array.of(np.zeros((1, 2, 2, 3), np.uint8))}, "no array as 'images'"),
    "none": ({}, "no array as 'images'"),
    "dtype": ({"images": Array.of(np.zeros((1, 2, 2, 3)))}, "[1, 2, 2, 3] <f8 as 'images'"),
    "rank": ({"images": Array.of(np.zeros((2, 2, 3), np.uint8))}, "[2, 2, 3] |u1 as 'images'"),
    "size": (
        {"images": Array.of(np.zeros((1, 2, 2, 4), np.uint8))},
        "[1, 2, 2, 4] |u1 as 'images'",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_array_names_the_architecture(fault: str) -> None:
    arrays, found = WRONG[fault]
    with pytest.raises(PluginError) as raised:
        MODEL.job_array(arrays, "images", "|u1", IMAGES)
    names = ", ".join(arrays) or "none"
    assert str(raised.value) == (
        f"architecture draws (draws:M): a job returned {found}, expected [n, n, n, 3] |u1; "
        f"its arrays: {names}"
    )


def test_a_right_array_is_returned() -> None:
    array = Array.of(np.zeros((1, 2, 2, 3), np.uint8))
    assert MODEL.job_array({"images": array}, "images", "|u1", IMAGES) is array
