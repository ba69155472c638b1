"""Separates reasoning from the answer while a model generates text."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ostro.core.tokenizer import Tokenizer


class Marker(NamedTuple):
    """The texts that begin and end reasoning, and the name of the first in plain output."""

    begin: str
    end: str
    name: str = "<think>"


MARKERS = (
    Marker("<think>", "</think>"),
    Marker("[THINK]", "[/THINK]", "[THINK]"),
    Marker("<seed:think>", "</seed:think>", "<seed:think>"),
    Marker("<thinking>", "</thinking>", "<thinking>"),
    Marker("<|START_THINKING|>", "<|END_THINKING|>"),  # Command R
    Marker("<|think|>", "<|end|>"),  # Solar
    Marker("<|channel>thought", "<channel|>"),  # Gemma 4
    Marker("<|channel|>analysis<|message|>", "<|end|>"),  # gpt-oss
    Marker("<|channel|>commentary<|message|>", "<|end|>"),  # gpt-oss, before tool calls
)

HEADERS = (
    "<|start|>assistant",  # gpt-oss
    "<|channel|>final<|message|>",
    "<|begin|>assistant",  # Solar
    "<|content|>",
)
"""Texts that may stand before reasoning or an answer; they belong to neither."""

TEXTS = (*HEADERS, *(text for marker in MARKERS for text in marker[:2]))


def control_texts(tokenizer: Tokenizer) -> dict[int, str]:
    """The texts of the control tokens that markers and headers contain, by id.

    Generated text has no control tokens: these have to be inserted for `ReasoningSplitter`.
    """
    ids = tokenizer.control_ids - tokenizer.eos_ids
    texts = {id: tokenizer.token(id) for id in ids}
    return {id: text for id, text in texts.items() if text and any(text in each for each in TEXTS)}


class Part(NamedTuple):
    """A piece of generated text without markers; `marker` is the name of its reasoning's marker."""

    text: str
    marker: str = ""


class ReasoningSplitter:
    """Splits text at the markers of reasoning, piece by piece.

    Reasoning begins with a marker at the start of the text, or in the prompt: some chat templates
    end with the marker. Several pieces of reasoning may follow each other. Whitespace around
    reasoning is dropped, and empty reasoning with it.

    state: "start" before an answer, "reasoning", or "answer", which stays.
    """

    def __init__(self, prompt: str = "") -> None:
        """`prompt` is the text before the answer, or its end."""
        self.held, self.state = "", "start"
        self.marker = MARKERS[0]
        self.stripped, self.empty = False, True
        for marker in MARKERS:
            if prompt.rstrip().endswith(marker.begin):
                self.marker, self.state = marker, "reasoning"

    def add(self, text: str) -> list[Part]:
        """The parts that a piece of text completes; text that may be a marker is delayed."""
        self.held += text
        parts: list[Part] = []
        before: tuple[str, str] | None = None
        while before != (self.state, self.held):
            before = self.state, self.held
            if self.state == "start":
                self._begin()
            if self.state == "reasoning":
                parts += self._reason()
        if self.state == "answer" and self.held:
            parts.append(Part(self.held))
            self.held = ""
        return parts

    def finish(self) -> list[Part]:
        """The delayed text, at the end of the answer."""
        held, self.held = self.held, ""
        if self.state == "reasoning":
            held = held.rstrip()
        if self.state == "start" and self.stripped:
            held = held.lstrip()
        return [Part(held, self.marker.name if self.state == "reasoning" else "")] if held else []

    def _begin(self) -> None:
        """Drop headers, and decide whether a marker follows, as soon as that is known."""
        text = self.held.lstrip()
        while header := next((each for each in HEADERS if text.startswith(each)), ""):
            text, self.stripped = text[len(header) :].lstrip(), True
        if self.stripped:
            self.held = text
        for marker in MARKERS:
            if text.startswith(marker.begin):
                self.marker, self.state, self.empty = marker, "reasoning", True
                self.held = text[len(marker.begin) :]
                return
        begins = (*HEADERS, *(marker.begin for marker in MARKERS))
        if not any(each.startswith(text) for each in begins):
            self.state = "answer"

    def _reason(self) -> list[Part]:
        """Reasoning up to its end; whitespace and the start of a marker are delayed."""
        end = self.marker.end
        found, marker, after = self.held.partition(end)
        if marker:
            self.held, self.state, self.stripped = after, "start", True
            found = found.rstrip()
        else:
            delayed = next(n for n in range(len(end), -1, -1) if found.endswith(end[:n]))
            kept = found[: len(found) - delayed].rstrip()
            self.held = found[len(kept) :]
            found = kept
        if self.empty:
            found = found.lstrip()
        self.empty = self.empty and not found
        return [Part(found, self.marker.name)] if found else []
