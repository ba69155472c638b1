"""Prompts with images and videos in them; of videos, the times are told in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models

from ostro.architectures.qwen2_5_vl.examples import equip, seeing
from ostro.architectures.qwen3_vl.inputs import Inputs
from ostro.testing import Example

TOLD = "<>. second0123456789"


def examples(folder: Path, raw: Mapping[str, Any]) -> Iterator[Example]:
    equip(folder, raw["vision_config"]["patch_size"])
    ids = {character: i for i, character in enumerate(TOLD, 40)}
    Tokenizer(models.BPE(ids, [])).save(str(folder / "tokenizer.json"))
    yield from seeing(Inputs(raw, folder))
