"""Texts to evaluate models on, and the windows they are split into."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ostro.core.errors import UsageError
from ostro.core.settings import STARTER
from ostro.core.tokenizer import Tokenizer

FOLDER = Path(__file__).parent / "texts"
DEFAULT = "plain.txt"
"""The text for all other models: English, code and numbers."""

BUILT_IN = {STARTER: "starter.jsonl"}
"""Texts by model: held-out chats for the starter model."""

PAIRS_SUFFIX = ".jsonl"


@dataclass(frozen=True)
class EvaluationText:
    """A text to evaluate.

    name: for reports. passages: pairs of a prompt and its evaluated continuation. A passage with an
    empty prompt is split into windows; others are not split.
    """

    name: str
    passages: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Window:
    """Token ids of one sequence. The ids from index `first` on are evaluated; it is at least 1."""

    ids: list[int]
    first: int

    @property
    def counted(self) -> list[int]:
        return self.ids[self.first :]


def read_text(file: str | None, reference: str | None) -> EvaluationText:
    """Read a text file, or JSONL of {"prompt": ..., "answer": ...} whose answers are evaluated.

    Without a file, read the built-in text of a model. Raises UsageError if it cannot be read.
    """
    path = FOLDER / BUILT_IN.get(reference or STARTER, DEFAULT) if file is None else Path(file)
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--text {file}: {error}; expected a file of UTF-8 text") from error
    if not text.strip():
        raise UsageError(f"--text {file} is empty; use a file with some pages of text")
    name = f"{path.stem} (built in)" if file is None else path.name
    passages = list(pairs(path, text)) if path.suffix == PAIRS_SUFFIX else [("", text)]
    return EvaluationText(name, passages)


def pairs(path: Path, text: str) -> Iterator[tuple[str, str]]:
    """Yield the prompt and answer of each line. Raises UsageError for a malformed line."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                found: Any = json.loads(line)
                pair = found["prompt"], found["answer"]
            except (ValueError, TypeError, KeyError, RecursionError):
                pair = "", ""
            if not all(isinstance(part, str) and part for part in pair):
                raise UsageError(
                    f'--text {path}: line {number}: expected {{"prompt": "...", "answer": "..."}}'
                )
            yield pair


def windows(
    text: EvaluationText, tokenizer: Tokenizer, length: int, tokens: int | None
) -> list[Window]:
    """Split a text into windows of at most `length` ids, each with the tokenizer's prefix.

    tokens: limit on the tokens of the text. Control tokens in a text are parsed as control tokens.
    Raises UsageError if no position can be evaluated, and for a pair longer than a window.
    """
    start = tokenizer.prefix
    if length < len(start) + 2:
        raise UsageError(f"--context {length}: a window needs {len(start) + 2} tokens")

    def ids(part: str) -> list[int]:
        return tokenizer.encode(part, special=False, parse_special=True)

    found: list[Window] = []
    for before, counted in text.passages:
        if before:
            given = [*start, *ids(before)]
            pieces = [Window([*given, *ids(counted)], len(given))]
        else:
            pieces = list(cut(ids(counted)[:tokens], start, length))
        found += pieces
        if tokens is not None and sum(len(window.ids) for window in found) >= tokens:
            break
    longest = max((len(window.ids) for window in found), default=0)
    if longest > length:
        raise UsageError(
            f"--text: a prompt and its answer have {longest} tokens, windows {length}; set "
            f"--context {longest} if the model supports it, or remove the pair"
        )
    if not any(window.counted for window in found):
        raise UsageError("--text: the text has fewer than two tokens; use a longer text")
    return found


def cut(ids: Sequence[int], start: Sequence[int], length: int) -> Iterator[Window]:
    """Yield consecutive windows. A last window without an evaluated position is dropped."""
    size, first = length - len(start), max(1, len(start))
    for at in range(0, len(ids), size):
        window = Window([*start, *ids[at : at + size]], first)
        if window.counted:
            yield window


def batches(cuts: Sequence[Window], rows: int, most: int) -> Iterator[list[Window]]:
    """Yield consecutive windows in batches of at most `rows` ids and `most` windows.

    A window longer than `rows` is a batch of its own.
    """
    batch: list[Window] = []
    for window in cuts:
        tokens_in_batch = sum(len(each.ids) for each in batch)
        if batch and (tokens_in_batch + len(window.ids) > rows or len(batch) == most):
            yield batch
            batch = []
        batch.append(window)
    yield batch
