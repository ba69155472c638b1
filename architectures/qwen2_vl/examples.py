"""Example prompts with images and videos, for the conformance kit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ostro.architectures.qwen2_5_vl.examples import equip, media_examples
from ostro.architectures.qwen2_vl.inputs import Inputs
from ostro.testing import Example


def examples(folder: Path, raw: Mapping[str, Any]) -> Iterator[Example]:
    equip(folder, raw["vision_config"]["patch_size"])
    for example in media_examples(Inputs(raw, folder)):
        arguments = dict(example.reference)
        arguments.pop("second_per_grid_ts", None)  # only Qwen2.5-VL has absolute times
        yield Example(example.prompt, arguments)
