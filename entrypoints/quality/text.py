"""The text that models are compared on, and the windows it is read in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ostro.core.errors import UsageError
from ostro.core.records import STARTER
from ostro.core.tokenizer import Tokenizer

HOME = Path(__file__).parent / "texts"
USUAL = "plain.txt"
"""English, code and numbers, written for this."""

BUILT_IN = {STARTER: "starter.jsonl"}
"""Texts for models that know little else: of the starter, chats that its training left out."""

PAIRS = ".jsonl"


@dataclass(frozen=True)
class EvaluationText:
    """What is read, and what it is called in reports.

    `passages` are pairs of text: what is only read, and what follows it and counts. One that has
    nothing before it is prose, cut into windows; others are read whole.
    """

    name: str
    passages: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Window:
    """Ids that are read at once; those from `first` on, which is at least 1, count."""

    ids: list[int]
    first: int

    @property
    def counted(self) -> list[int]:
        return self.ids[self.first :]


def read_text(file: str | None, reference: str | None) -> EvaluationText:
    """The text of a file, prose or JSONL of {"prompt": ..., "answer": ...} whose answers count; or
    the one that comes with ostro for a model. Raises UsageError for none at all.
    """
    path = HOME / BUILT_IN.get(reference or STARTER, USUAL) if file is None else Path(file)
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--text {file}: {error}; name a file of UTF-8 text") from error
    if not text.strip():
        raise UsageError(f"--text {file} is empty; name a file with some pages of text")
    name = f"{path.stem}, which comes with ostro" if file is None else path.name
    return EvaluationText(name, list(pairs(path, text)) if path.suffix == PAIRS else [("", text)])


def pairs(path: Path, text: str) -> Iterator[tuple[str, str]]:
    """The prompts and answers of a file's lines. Raises UsageError for a line that has none."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                found: Any = json.loads(line)
                pair = found["prompt"], found["answer"]
            except (ValueError, TypeError, KeyError, RecursionError):
                pair = "", ""
            if not all(isinstance(part, str) and part for part in pair):
                raise UsageError(
                    f"--text {path}: line {number} is not of the form "
                    '{"prompt": "...", "answer": "..."}'
                )
            yield pair


def windows(
    text: EvaluationText, tokenizer: Tokenizer, length: int, tokens: int | None
) -> list[Window]:
    """Windows of at most `length` ids, each behind what the model's texts begin with, until so many
    `tokens` of the text are read. Control tokens written in a text are control tokens.

    Raises UsageError where there is none, and for a pair that is longer.
    """
    start = tokenizer.prefix
    if length < len(start) + 2:
        raise UsageError(f"--context {length}: a window needs {len(start) + 2} tokens")

    def ids(words: str) -> list[int]:
        return tokenizer.encode(words, special=False, parse_special=True)

    found: list[Window] = []
    for before, counted in text.passages:
        if before:
            given = [*start, *ids(before)]
            made = [Window([*given, *ids(counted)], len(given))]
        else:
            made = list(cut(ids(counted)[:tokens], start, length))
        found += made
        if tokens is not None and sum(len(window.ids) for window in found) >= tokens:
            break
    longest = max((len(window.ids) for window in found), default=0)
    if longest > length:
        raise UsageError(
            f"--text: a prompt and its answer have {longest} tokens, windows {length}; set "
            f"--context {longest} if the model has room for it, or leave the pair out"
        )
    if not any(window.counted for window in found):
        raise UsageError("--text: there is no token that follows another; name a longer text")
    return found


def cut(ids: Sequence[int], start: Sequence[int], length: int) -> Iterator[Window]:
    """Prose in windows, one after the other. A last id that says nothing of a next is left out."""
    size, first = length - len(start), max(1, len(start))
    for at in range(0, len(ids), size):
        window = Window([*start, *ids[at : at + size]], first)
        if window.counted:
            yield window


def batches(cuts: Sequence[Window], rows: int, most: int) -> Iterator[list[Window]]:
    """Windows that are read together, in their order: at most so many rows of at most so many
    windows, at least one.
    """
    batch: list[Window] = []
    for window in cuts:
        held = sum(len(each.ids) for each in batch)
        if batch and (held + len(window.ids) > rows or len(batch) == most):
            yield batch
            batch = []
        batch.append(window)
    yield batch
