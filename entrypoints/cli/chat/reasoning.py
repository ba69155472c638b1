"""Separates reasoning from the answer while a model generates text."""

from __future__ import annotations

from typing import NamedTuple

MARKERS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"))
"""The texts that begin and end reasoning."""


class Part(NamedTuple):
    """A piece of generated text without markers; `marker` is the one that began its reasoning."""

    text: str
    marker: str = ""


class ReasoningSplitter:
    """Splits text at the markers of reasoning, piece by piece.

    Reasoning begins with a marker at the start of the text, or in the prompt: some chat templates
    end with the marker. Whitespace around reasoning is dropped, and empty reasoning with it.
    """

    def __init__(self, prompt: str = "") -> None:
        """`prompt` is the text before the answer, or its end."""
        self.marker = self.end = self.held = ""
        self.state = "start"
        for begin, end in MARKERS:
            if prompt.rstrip().endswith(begin):
                self.marker, self.end, self.state = begin, end, "reasoning"
        self.empty = True

    def add(self, text: str) -> list[Part]:
        """The parts that a piece of text completes; text that may be a marker is delayed."""
        self.held += text
        parts: list[Part] = []
        if self.state == "start":
            self._begin()
        if self.state == "reasoning":
            parts += self._reason()
        if self.state == "gap" and (stripped := self.held.lstrip()):
            self.held, self.state = stripped, "answer"
        if self.state == "answer" and self.held:
            parts.append(Part(self.held))
            self.held = ""
        return parts

    def finish(self) -> list[Part]:
        """The delayed text, at the end of the answer."""
        held, self.held = self.held, ""
        if self.state == "reasoning":
            held = held.rstrip()
        if self.state == "gap" or not held:
            return []
        return [Part(held, self.marker if self.state == "reasoning" else "")]

    def _begin(self) -> None:
        """Decide whether the text begins with a marker, as soon as that is known."""
        stripped = self.held.lstrip()
        for begin, end in MARKERS:
            if stripped.startswith(begin):
                self.marker, self.end, self.state = begin, end, "reasoning"
                self.held = stripped[len(begin) :]
                return
        if not any(begin.startswith(stripped) for begin, _ in MARKERS):
            self.state = "answer"

    def _reason(self) -> list[Part]:
        """Reasoning up to its end; whitespace and the start of a marker are delayed."""
        found, marker, after = self.held.partition(self.end)
        if marker:
            self.held, self.state = after, "gap"
            found = found.rstrip()
        else:
            delayed = next(n for n in range(len(self.end), -1, -1) if found.endswith(self.end[:n]))
            kept = found[: len(found) - delayed].rstrip()
            self.held = found[len(kept) :]
            found = kept
        if self.empty:
            found = found.lstrip()
        self.empty = self.empty and not found
        return [Part(found, self.marker)] if found else []
