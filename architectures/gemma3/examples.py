"""Example prompts with images, for the conformance kit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, models

from ostro.architectures.gemma3.inputs import Inputs
from ostro.architectures.llava.examples import SELECTIONS, SIDE, prompted, shown
from ostro.testing import Example

PREPROCESSOR = {
    "size": {"height": SIDE, "width": SIDE},
    "resample": 2,
    "do_pan_and_scan": None,
    "image_processor_type": "Gemma3ImageProcessor",
}
LINE = 4
"""The token of one newline; the next ids are two and three newlines."""


def examples(folder: Path, raw: Mapping[str, Any]) -> Iterator[Example]:
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    write_tokenizer(folder)
    inputs = Inputs(raw, folder)
    for seen in SELECTIONS:
        prompt = prompted(inputs, seen)
        soft = np.array([prompt.tokens]) == raw["image_token_index"]
        arrays = {"pixel_values": shown(prompt), "token_type_ids": soft.astype(np.int64)}
        yield Example(prompt, arrays)


def write_tokenizer(folder: Path, runs: int = 3) -> None:
    """A tokenizer with tokens of up to `runs` newlines."""
    tokenizer = Tokenizer(models.BPE({f"w{i}": i for i in range(LINE)}, []))
    tokenizer.add_tokens([AddedToken("\n" * n, normalized=False) for n in range(1, runs + 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
