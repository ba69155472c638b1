"""Example prompts with images and videos; timestamps of videos are text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models

from ostro.architectures.qwen2_5_vl.examples import equip, media_examples
from ostro.architectures.qwen3_vl.inputs import Inputs
from ostro.testing import Example

TIMESTAMP_CHARACTERS = "<>. second0123456789"


def examples(folder: Path, raw: Mapping[str, Any]) -> Iterator[Example]:
    equip(folder, raw["vision_config"]["patch_size"])
    ids = {character: i for i, character in enumerate(TIMESTAMP_CHARACTERS, 40)}
    Tokenizer(models.BPE(ids, [])).save(str(folder / "tokenizer.json"))
    yield from media_examples(Inputs(raw, folder))
