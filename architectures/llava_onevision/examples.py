"""Example prompts with one image, several images and videos, for the conformance kit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ostro.architectures.llava_next.examples import media_examples
from ostro.architectures.llava_onevision.inputs import Inputs
from ostro.testing import Example

SIDE = 24
SELECTIONS = ((0,), (0, 2), (3,), (2, 3), (2,))


def examples(folder: Path, raw: Mapping[str, Any]) -> Iterator[Example]:
    settings = {
        "size": {"height": SIDE, "width": SIDE},
        "image_grid_pinpoints": raw["image_grid_pinpoints"],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    for example in media_examples(Inputs(raw, folder), SELECTIONS):
        count = sum(item.kind == "image" for item in example.prompt.items)
        more = {"batch_num_images": np.array([count])} if count else {}
        yield replace(example, reference={**example.reference, **more})
