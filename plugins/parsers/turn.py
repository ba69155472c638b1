"""The base of the parsers: reads a turn of text, reasoning and calls as it is generated.

Parsers are generators: each `yield` waits for more of the output, so that the readers below and in
the other modules are written as if the whole output were there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from copy import copy
from functools import lru_cache
from secrets import token_hex
from typing import TypeVar

from ostro.pipelines import (
    OutputEvent,
    Piece,
    Reasoning,
    Text,
    Tool,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolChoice,
)
from ostro.plugins.parsers.lark import Rules, is_constrained

OPEN, CLOSE = "\ud800", "\ud801"
"""Enclose control tokens in the output that is held. Text contains no surrogates."""
SPACE = r"(/[ \n]{1,2}/)?"
"""White space behind reasoning, in grammars."""
MOST_QUOTED = 16
"""Markers of calls in reasoning that are no calls. Beyond, none is looked for: each takes time."""
MOST_AT_ONCE = 1024
"""Characters that are read before it is looked whether they are of a call."""
CONTROL = re.compile(f"{OPEN}[^{CLOSE}]*{CLOSE}")
T = TypeVar("T")
Reader = Generator[None, None, T]
"""Waits for more of the output with `yield`, and returns what it has read."""


class TurnParser:
    """An `OutputParser`. A notation states its markers and implements `read_calls`.

    begins  the markers that begin calls
    drops   texts that belong to nothing, such as the header of a message
    answer  those before and behind a text, and between a text and calls, for grammars
    after_reasoning  those behind reasoning, for grammars

    A marker that is a control token of the vocabulary is found anywhere; the text that begins
    reasoning is found only where no text precedes it. White space around a marker belongs to it.
    """

    reasoning: tuple[str, str] | None = ("<think>", "</think>")
    begins: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()
    answer: tuple[str, str, str] = ("", "", "")
    after_reasoning = ""

    def __init__(
        self, prompt_end: str, tools: Sequence[Tool], controls: Collection[str] = ()
    ) -> None:
        self.tools = {tool.name: tool for tool in tools}
        # Tools that may be called where grammars do not constrain what is written.
        self.unconstrained = {tool.name for tool in tools if not is_constrained(tool)}
        self.controls = frozenset(controls)
        self.held, self.ended = "", False
        self.calls = 0
        self._events: list[OutputEvent] = []
        self._strips = self._written = False
        self._space = self._before = self._skipped = ""
        self._reader = self.read_turn(prompt_end)
        next(self._reader, None)

    def add(self, piece: Piece) -> list[OutputEvent]:
        """The events that are known after a piece."""
        control = f"{OPEN}{piece.control}{CLOSE}" if piece.control else ""
        self.held += piece.text + control
        return self._advance()

    def finish(self) -> list[OutputEvent]:
        """The rest, at the end of the output."""
        self.ended = True
        return self._advance()

    def _advance(self) -> list[OutputEvent]:
        next(self._reader, None)
        events, self._events = self._events, []
        return events

    def marks(self, *texts: str) -> tuple[str, ...]:
        """Markers as they are in `held`: control tokens are enclosed."""
        return tuple(enclosed(text, self.controls) for text in texts)

    def write(self, text: str) -> None:
        """Emit text. White space around a marker stays if text precedes it and no call follows."""
        if visible := self._visible(text):
            space = self._before + self._space if self._written else ""
            self._emit(Text(space + visible))
            self._space, self._before, self._written = "", "", True

    def think(self, text: str) -> None:
        """Emit reasoning."""
        if visible := self._visible(text):
            self._emit(Reasoning(visible))
            self._space = ""

    def start_call(self, name: str, id: str = "") -> None:
        """Emit the start of a call."""
        self._before = ""
        self._emit(ToolCallStart(self.calls, id or self.new_id(), name))

    def add_arguments(self, text: str) -> None:
        """Emit arguments of the current call."""
        self._emit(ToolCallArguments(self.calls, CONTROL.sub("", text)))

    def end_call(self, *, complete: bool = True) -> None:
        """Emit the end of the current call if it is complete; further events belong to the next."""
        if complete:
            self._emit(ToolCallEnd(self.calls))
        self.calls += 1
        self._strips = True

    def new_id(self) -> str:
        """An id for a call whose notation has none."""
        return f"call_{token_hex(12)}"

    def _visible(self, text: str) -> str:
        """Text without control tokens, and without white space behind a marker."""
        text = CONTROL.sub("", text) if OPEN in text else text
        if self._strips:
            rest = text.lstrip()
            self._space += text[: len(text) - len(rest)]
            text, self._strips = rest, not rest
        return text

    def _emit(self, event: OutputEvent) -> None:
        """Add an event; one without text is none, and texts that follow each other are joined."""
        if isinstance(event, ToolCallStart | ToolCallEnd):
            self._events.append(event)
        elif event.text:
            last = self._events[-1] if self._events else None
            if isinstance(last, Text | Reasoning | ToolCallArguments) and type(last) is type(event):
                last.text += event.text
            else:
                self._events.append(event)

    def read_turn(self, prompt_end: str) -> Reader[None]:
        """Read the whole output."""
        begin, end = self.marks(*self.reasoning) if self.reasoning else ("", "")
        drops = self.marks(*self.drops)
        others = [*drops, *self.call_marks()]
        anywhere = [begin, *others] if OPEN in begin else others
        fresh = [begin, *others] if begin else others
        found = begin if opens(prompt_end, self.reasoning) else (yield from self.read_start())
        while True:
            found = found or (yield from self.starts(fresh))
            before = ""
            if not found:
                found = yield from self.until(anywhere, self.write)
                before = self._skipped
            if not found:
                return
            self._strips = True
            if found == begin:
                found = yield from self.read_reasoning(end, others)
            elif found in drops:
                found = ""
            else:
                self._before = before
                yield from self.read_calls(found)
                found = self._before = ""
            self._strips = True

    def call_marks(self) -> Sequence[str]:
        """The markers that begin calls, as they are in `held`; none without tools."""
        return self.marks(*self.begins) if self.tools else ()

    def read_start(self) -> Reader[str]:
        """Read what only the start of an answer can be; return a marker that is found."""
        return ""
        yield

    def read_unmarked(self, opening: str, read: Callable[[], Reader[None]]) -> Reader[None]:
        """Read calls without a marker if the answer begins with `opening`."""
        while self.tools:
            text = self.held.lstrip()
            if text.startswith(opening):
                yield from read()
                return
            if text or self.ended:
                return
            yield

    def read_reasoning(self, end: str, others: Sequence[str]) -> Reader[str]:
        """Read reasoning and its end. Returns the control token that ends it instead, or "".

        Calls whose marker is no control token end it if they are the end of the output.
        """
        stops = [end, *(x for x in others if OPEN in x)]
        begins = [x for x in self.call_marks() if OPEN not in x]
        quoted = 0
        while True:
            markers = [*stops, *begins] if quoted < MOST_QUOTED else stops
            at, found = first(self.held, markers)
            if found in begins:
                before = self.take(at)
                self.think(before.rstrip())
                if (yield from self.read_last_calls(stops)):
                    return ""
                space = before[len(before.rstrip()) :]
                self.think(space + self.take(len(found)))
                quoted += 1
            elif found:
                self.think(self.take(at).rstrip())
                self.take(len(found))
                return "" if found == end else found
            else:
                size = len(self.held) if self.ended else held_from(self.held, markers)
                self.think(self.take(size))
                if self.ended:
                    return ""
                yield

    def read_last_calls(self, stops: Sequence[str]) -> Reader[bool]:
        """Read calls of offered tools up to the end of the output. Returns whether it has them.

        Calls are held back until the output ends: reasoning that ends, or goes on, only quotes
        them. What only looks like calls is in `held` again.
        """
        parser = copy(self)
        parser.reasoning, parser.held, parser._events = None, "", []
        parser._reader = parser.read_turn("")
        pieces, events = list[str](), list[OutputEvent]()
        while not first(self.held, stops)[1]:
            at = len(self.held) if self.ended else held_from(self.held, stops, exact=True)
            size = min(at, MOST_AT_ONCE)
            if self.held.rfind(OPEN, 0, size) > self.held.rfind(CLOSE, 0, size):
                size = self.held.index(CLOSE, size) + 1  # a control token is not cut
            pieces.append(self.take(size))
            parser.held += pieces[-1]
            parser.ended = self.ended and not self.held
            new = parser._advance()
            events += new
            if not all(map(self.is_of_call, new)):
                break
            if parser.ended:
                ends = sum(isinstance(event, ToolCallEnd) for event in events)
                if not ends or ends < sum(isinstance(event, ToolCallStart) for event in events):
                    break
                for event in events:
                    self._emit(event)
                self.calls = parser.calls
                return True
            if at <= MOST_AT_ONCE and not self.ended:
                yield
        self.held = "".join(pieces) + self.held
        return False

    def is_of_call(self, event: OutputEvent) -> bool:
        """Whether an event belongs to a call of an offered tool that is not strict."""
        if isinstance(event, ToolCallStart):
            return event.name in self.unconstrained
        return isinstance(event, ToolCallArguments | ToolCallEnd)

    @classmethod
    def grammar(
        cls,
        tools: Sequence[Tool],
        choice: ToolChoice,
        parallel: bool,
        controls: Mapping[str, int] | None = None,
        *,
        answer: bool = False,
    ) -> str:
        """The grammar of an output. Reasoning may precede its text and calls."""
        rules, exact = Rules(controls or {}), choice != "auto"
        chosen = [x for x in tools if isinstance(choice, str) or x.name in choice]
        thought = cls.write_reasoning(rules)
        if not chosen:
            return rules.grammar(f"{thought} {write_answer(cls, rules)}")
        calls = rules.rule(cls.write_calls(rules, chosen, exact, parallel))
        begin = cls.write_begin(rules, exact or answer)
        if exact:
            return rules.grammar(f"{thought} {begin} {calls}")
        if answer:
            return rules.grammar(f"{thought} ({write_answer(cls, rules)} | {begin} {calls})")
        before, behind, between = map(rules.text, cls.answer)
        if not before:
            return rules.grammar(f"{thought} (TEXT | {rules.until(cls.begins[0])} {calls})")
        text = f"{before} TEXT {behind}"
        return rules.grammar(f"{thought} ({text} | ({text} {between})? {begin} {calls})")

    @classmethod
    def write_begin(cls, rules: Rules, exact: bool) -> str:
        """The marker that begins calls."""
        return rules.text(cls.begins[0])

    @classmethod
    def write_reasoning(cls, rules: Rules) -> str:
        """Reasoning that may precede an answer."""
        if cls.reasoning is None:
            return ""
        begin, end = cls.reasoning
        behind = rules.text(cls.after_reasoning) if cls.after_reasoning else SPACE
        return f"({rules.text(begin)} {rules.until(end)} {behind})?"

    @classmethod
    def write_calls(cls, rules: Rules, tools: Sequence[Tool], exact: bool, parallel: bool) -> str:
        """The calls behind the marker that begins them.

        exact: arguments follow the schemas of all tools, not only of strict ones.
        """
        raise NotImplementedError

    def read_calls(self, marker: str) -> Reader[None]:
        """Read the calls that a marker begins, and the marker of their end."""
        raise NotImplementedError
        yield

    def until(
        self, markers: Sequence[str], emit: Callable[[str], None], *, exact: bool = False
    ) -> Reader[str]:
        """Emit what precedes the first of the markers, and consume it.

        exact: white space before the marker does not belong to it. Returns the marker, "" at the
        end of the output.
        """
        while True:
            at, marker = first(self.held, markers)
            if marker:
                text = self.take(at)
                self._skipped = "" if exact else text[len(text.rstrip()) :]
                emit(text if exact else text.rstrip())
                return self.take(len(marker))
            size = len(self.held) if self.ended else held_from(self.held, markers, exact)
            emit(self.take(size))
            if self.ended:
                return ""
            yield

    def starts(self, markers: Sequence[str]) -> Reader[str]:
        """Consume one of the markers if it is next, behind white space. Returns it, or ""."""
        while True:
            text = self.held.lstrip()
            for marker in markers:
                if text.startswith(marker):
                    self.held = text[len(marker) :]
                    return marker
            if self.ended or not any(marker.startswith(text) for marker in markers):
                return ""
            yield

    def skip(self, characters: str) -> Reader[str]:
        """Consume these characters, until another one is next. Returns those consumed."""
        skipped = ""
        while True:
            rest = self.held.lstrip(characters)
            skipped += self.take(len(self.held) - len(rest))
            if rest or self.ended:
                return skipped
            yield

    def take(self, size: int) -> str:
        """Consume this many characters of what is held."""
        taken, self.held = self.held[:size], self.held[size:]
        return taken


def write_answer(kind: type[TurnParser], rules: Rules) -> str:
    """A text that satisfies the grammar `@answer`, and the markers around it, for grammars."""
    before, behind, _ = map(rules.text, kind.answer)
    if not before and len(kind.drops) == 2:  # a pair of tags that some answers have
        before, behind = (f"({rules.text(tag)})?" for tag in kind.drops)
    return f"{before} @answer {behind}"


@lru_cache(maxsize=1024)
def enclosed(text: str, controls: frozenset[str]) -> str:
    """A marker, its control tokens enclosed."""
    found = sorted((each for each in controls if each and each in text), key=len, reverse=True)
    if not found:
        return text
    either = "|".join(map(re.escape, found))
    return re.sub(either, lambda match: f"{OPEN}{match[0]}{CLOSE}", text)


def opens(prompt_end: str, reasoning: tuple[str, str] | None) -> bool:
    """Whether a prompt ends with the text that begins reasoning."""
    return reasoning is not None and prompt_end.rstrip().endswith(reasoning[0].rstrip())


def first(text: str, markers: Sequence[str]) -> tuple[int, str]:
    """The place and the text of the first marker, the longest one there; (-1, "") without one."""
    found = [(at, -len(each), each) for each in markers if (at := text.find(each)) >= 0]
    at, _, marker = min(found, default=(-1, 0, ""))
    return at, marker


def held_from(text: str, markers: Sequence[str], exact: bool = False) -> int:
    """Where text begins that may turn out to be a marker, with the white space before it.

    exact: without the white space.
    """
    if not markers:
        return len(text)
    known = text[: len(text) - max(overlap(text, marker) for marker in markers)]
    return len(known if exact else known.rstrip())


def overlap(text: str, marker: str) -> int:
    """The length of the longest end of a text that begins a marker."""
    at = text.find(marker[0], max(0, len(text) - len(marker) + 1))
    while at >= 0:
        if marker.startswith(text[at:]):
            return len(text) - at
        at = text.find(marker[0], at + 1)
    return 0
