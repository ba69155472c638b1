"""Grammars over the vocabularies of published models, which lie beside the checkout."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tiny.grammars import Walker, fill, open_masks, read, request

from ostro.core.errors import TokenizerError
from ostro.core.tokenizer import Tokenizer, load_tokenizer
from ostro.plugins.checkpoints.gguf.reader import open_gguf

VOCAB = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "vocab"
FILES = sorted(VOCAB.glob("*.gguf")) if VOCAB.is_dir() else []
TEXTS = ("Hello, world!", "naïve café", "日本語 🙂", "  two  spaces\n\tand lines", '"a": {')
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
STEP = 0.01
"""Processor time of one mask, in seconds; most take less than a thousandth."""

pytestmark = pytest.mark.slow


def tokenizer(file: Path) -> Tokenizer:
    container = open_gguf(file)
    try:
        return load_tokenizer(file, metadata=container.metadata)
    finally:
        container.close()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_published_vocabulary(file: Path) -> None:
    """Pieces, a schema token by token, and the time of a mask."""
    loaded = tokenizer(file)
    if "bert" in file.name:
        with pytest.raises(TokenizerError, match="WordPiece"):
            read(loaded)
        return
    known = read(loaded)
    for text in TEXTS:
        assert b"".join(known.pieces[id] for id in known.encode(text)) == text.encode()
    walker = Walker({"json_schema": PERSON}, known)
    for value in ({"name": "Ann", "age": 7}, {"name": 'q"🙂é\n', "age": -1}):
        for indent in (None, 2):
            assert walker.accepts(json.dumps(value, indent=indent, ensure_ascii=False))
    for wrong in ({"name": "Ann"}, {"name": "Ann", "age": 1.5}, {"age": 7, "name": "Ann"}):
        assert not walker.accepts_json(wrong)
    walker.restart()
    ids = known.encode(json.dumps({"name": "Ann " * 20, "age": 7}))
    masks, start = open_masks(known), time.process_time()
    for id in ids:
        assert not fill(walker.processor, [request(0, [id])], masks)
    assert (time.process_time() - start) / len(ids) < STEP
