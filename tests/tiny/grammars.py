"""Grammars in tests: vocabularies, and texts read token by token through the masks."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import tokenizers
import torch
from torch import Tensor

from ostro.core.tokenizer import Tokenizer, load_tokenizer
from ostro.core.tokenizer.vocabulary import Vocabulary
from ostro.plugins.logits.grammar.processor import GrammarProcessor
from tiny.vocabularies import scored, train

ROOT = Path(__file__).parents[2]


def read(tokenizer: Tokenizer, padding: int = 3) -> Vocabulary:
    """The vocabulary of a tokenizer, with a few ids without a token."""
    return Vocabulary.from_tokenizer(
        tokenizer, tokenizer.vocab_size + padding, tokenizer.eos_ids or {2}
    )


@cache
def vocabulary(kind: str = "starter") -> Vocabulary:
    """A vocabulary of the repository: byte-level (starter, trained) or SentencePiece."""
    if kind == "starter":
        return read(load_tokenizer(ROOT / "plugins" / "starter" / "model"))
    if kind == "trained":
        backend = tokenizers.Tokenizer.from_str(train().to_str())
        return read(Tokenizer(backend, special_tokens={"eos_token": "</s>"}, eos_ids=[1]))
    return read(scored("a", "b", "true", "▁true", '{"', '":', "▁the", "12"))


def words(vocabulary: Vocabulary) -> int:
    """The words of one mask."""
    return -(-vocabulary.size // 32)


def open_masks(vocabulary: Vocabulary, rows: int = 1) -> Tensor:
    """Masks that allow every token."""
    return torch.full((rows, words(vocabulary)), -1, dtype=torch.int32)


def allowed(mask: Tensor, size: int) -> set[int]:
    """The tokens that a mask allows."""
    bits = np.unpackbits(mask.numpy().view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits[:size]).tolist())


def request(row: int, tokens: Sequence[int] = (), drafts: Sequence[int] = ()) -> Any:
    """What the engine sends for masks: `MaskRequest`."""
    return SimpleNamespace(row=row, tokens=tokens, drafts=drafts)


def added(row: int, prepared: Any, output: Sequence[int] = ()) -> Any:
    """What the engine sends for a new row: `AddedRequest`."""
    return SimpleNamespace(row=row, parameter=None, prepared=prepared, prompt=[], output=output)


def fill(processor: GrammarProcessor, requests: Sequence[Any], masks: Tensor) -> dict[int, Any]:
    """Get masks, however long they take; return the errors of requests by index."""
    unfilled = processor.fill(requests, masks)
    while None in unfilled.values():
        again = [request(each.row, (), each.drafts) for each in requests]
        unfilled = processor.fill(again, masks)
    return dict(unfilled)


class Walker:
    """One sequence under a grammar."""

    def __init__(self, parameter: Any, vocabulary: Vocabulary) -> None:
        self.vocabulary, self.new = vocabulary, list[int]()
        self.processor = GrammarProcessor(4, vocabulary, torch.device("cpu"))
        self.prepared = GrammarProcessor.prepare(parameter, vocabulary)
        self.restart()

    def restart(self) -> None:
        """Begin the grammar again."""
        self.processor.update([added(0, self.prepared)], [], [])
        self.new = []

    def mask(self) -> Tensor:
        """The mask of the next token."""
        masks = open_masks(self.vocabulary)
        errors = fill(self.processor, [request(0, self.new)], masks)
        self.new = []
        assert not errors, errors
        return masks[0]

    def next(self) -> set[int]:
        """The tokens that may come next."""
        return allowed(self.mask(), self.vocabulary.size)

    def accepts(self, text: str, special: Sequence[int] = ()) -> bool:
        """Whether a text is a whole answer; `special` are control tokens before it."""
        self.restart()
        end = min(self.vocabulary.eos_ids)
        for id in (*special, *self.vocabulary.encode(text), end):
            if not int(self.mask()[id // 32]) >> (id % 32) & 1:
                return False
            self.new = [id]
        return True

    def accepts_json(self, value: Any) -> bool:
        """Whether a value is an answer, as JSON without white space."""
        return self.accepts(json.dumps(value, ensure_ascii=False, separators=(",", ":")))

    def draw(self, seed: int, limit: int = 400) -> str | None:
        """A random answer; None if it has not ended after `limit` tokens."""
        self.restart()
        rng, data = random.Random(seed), b""
        for _ in range(limit):
            id = rng.choice(sorted(self.next()))
            if id in self.vocabulary.eos_ids:
                return data.decode()
            data += self.vocabulary.pieces[id]
            self.new = [id]
        return None
