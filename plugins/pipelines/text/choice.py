"""One choice of a response: converts token ids to text, reasoning and tool calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ostro.pipelines import (
    ChoiceEnd,
    Detokenizer,
    Event,
    Finish,
    OutputEvent,
    OutputParser,
    Piece,
    Reasoning,
    Stop,
    Text,
    TokenLogprobs,
    TokenOutput,
    ToolCallEnd,
    text_of,
)

Entry = tuple[int, int, TokenLogprobs | None]
"""The offset of a token's text, the token, and its log probability."""


class ChoiceState:
    """The state of one choice.

    `tokens` counts generated tokens, `reasoning_tokens` those of reasoning. `logprob` is the sum of
    the log probabilities if these are known, `done` is set at the end.
    """

    def __init__(
        self,
        index: int,
        detokenizer: Detokenizer,
        stop: Stop,
        *,
        min_tokens: int = 0,
        logprobs: bool = False,
        token_ids: bool = False,
        parser: OutputParser | None = None,
        controls: Mapping[int, str] | None = None,
    ) -> None:
        """Stop strings count only after `min_tokens`; `logprobs` and `token_ids`: report them.

        `parser` finds reasoning and calls; `controls` are the spellings of control tokens for it
        and for stop strings.
        """
        self.index = index
        self.tokens = self.reasoning_tokens = 0
        self.logprob = 0.0
        self.done = False
        self._detokenizer, self._stop = detokenizer, stop
        self._parser, self._controls = parser, controls or {}
        self._min_tokens = min_tokens
        self._length = self._sent = self._undecided = 0
        self._called = False
        self._logprobs = logprobs
        self._entries: list[Entry] | None = [] if logprobs or token_ids else None

    def echo(
        self,
        text: str,
        tokens: Sequence[int],
        pieces: Sequence[str],
        logprobs: Sequence[TokenLogprobs | None] | None,
    ) -> list[Text]:
        """The prompt as text, which may be empty; `pieces` are the texts of its tokens."""
        if self._entries is not None and logprobs is not None:
            at = 0
            for token, piece, entry in zip(tokens, pieces, logprobs, strict=True):
                self._entries.append((at, token, entry))
                at += len(piece)
        self._length = len(text)
        return [event for event in self._ready([Text(text)], all=True) if isinstance(event, Text)]

    def add(self, output: TokenOutput) -> list[Event]:
        """The text, reasoning and calls that are final after an output.

        Text that may begin a stop string is withheld, with the logprobs of its tokens.
        """
        known = output.logprobs is not None or self._entries is not None
        if not known and not self._stop.strings and self._parser is None:
            self.tokens += len(output.tokens)
            text = self._detokenizer.add(output.tokens)
            if output.finish is None:
                return [Text(text, index=self.index)] if text else []
            text += self._detokenizer.finish()
            return self._end([Text(text)], output.finish, output.stopped_by)
        events: list[OutputEvent] = []
        entries: Sequence[TokenLogprobs | None] = output.logprobs or [None] * len(output.tokens)
        for token, entry in zip(output.tokens, entries, strict=True):
            self.tokens += 1
            self.logprob += 0.0 if entry is None else entry.logprob
            if self._entries is not None:
                self._entries.append((self._length, token, entry))
            events += self._pass(self._parse(token))
            if self.tokens > self._min_tokens and (control := self._stop_control(token)):
                events += self._stop_at(control)
            if self._stop.found is not None:
                return self._end(events, "stop", self._stop.found)
        if output.finish is None:
            return self._ready(events)
        events += self._pass(self._rest())
        if self._stop.found is not None:
            return self._end(events, "stop", self._stop.found)
        # The token that ended the answer may be the last one of a stop string.
        events.append(Text(self._stop.add("", self._stop_control(output.stopped_by))))
        events.append(Text(self._stop.rest()))
        return self._end(events, output.finish, output.stopped_by)

    def _stop_control(self, token: int | None) -> str:
        """The text of a control token that a stop string contains, "" for other tokens."""
        text = "" if token is None else self._controls.get(token, "")
        return text if text in self._stop.controls else ""

    def _stop_at(self, control: str) -> list[OutputEvent]:
        """The events that precede a control token; the last ones if it completes a stop string."""
        if self._stop.found is not None:
            return []
        events: list[OutputEvent] = [Text(self._stop.add("", control))]
        if self._stop.found is not None and self._parser is not None:
            events += self._parser.finish()
        return events

    def _parse(self, token: int) -> list[OutputEvent]:
        """The events of a token; it counts as reasoning if reasoning is the next event."""
        if self._parser is None:
            flushes = bool(self._stop_control(token))
            return [Text(self._detokenizer.flush() if flushes else self._detokenizer.add([token]))]
        if token in self._controls:
            events = self._parser.add(Piece(self._detokenizer.flush(), self._controls[token]))
        else:
            events = self._parser.add(Piece(self._detokenizer.add([token])))
        self._undecided += 1
        if events:
            self.reasoning_tokens += self._undecided * isinstance(events[0], Reasoning)
            self._undecided = 0
        return events

    def _rest(self) -> list[OutputEvent]:
        """The events of what is held back, at the end."""
        text = self._detokenizer.finish()
        if self._parser is None:
            return [Text(text)]
        return [*self._parser.add(Piece(text)), *self._parser.finish()]

    def _pass(self, events: Sequence[OutputEvent]) -> list[OutputEvent]:
        """Events up to a stop string, which is looked for in texts between other events."""
        passed: list[OutputEvent] = []
        for event in events:
            if not isinstance(event, Text):
                self._called |= isinstance(event, ToolCallEnd)
                passed += [Text(self._stop.rest()), event]
                continue
            self._length += len(event.text)
            stops = self.tokens > self._min_tokens
            passed.append(Text(self._stop.add(event.text)) if stops else event)
            if self._stop.found is not None:
                break
        return passed

    def _end(
        self, events: Sequence[OutputEvent], finish: Finish, stopped_by: str | int | None
    ) -> list[Event]:
        self.done = True
        if self._stop.found is not None and self._entries:
            end = self._sent + len(text_of(events))
            self._entries = [each for each in self._entries if each[0] < end]
        if finish == "stop" and self._called and not isinstance(stopped_by, str):
            finish = "tool_calls"
        ready = self._ready(events, all=True)
        return [*ready, ChoiceEnd(finish, stopped_by, index=self.index)]

    def _ready(self, events: Sequence[OutputEvent], all: bool = False) -> list[Event]:
        """The events to send, the first text with the tokens that start in them, if reported.

        Reasoning and calls have no offsets: with them all known tokens are sent.
        """
        text = text_of(events)
        self._sent += len(text)
        if any(not isinstance(event, Text) for event in events):
            ready = [event for event in events if not is_silent(event)]
            all = True
        else:
            ready = [Text(text)] if text else []
        if self._entries and (due := [x for x in self._entries if all or x[0] < self._sent]):
            self._entries = self._entries[len(due) :]
            first = next((event for event in ready if isinstance(event, Text)), None)
            if first is None:
                first = Text()
                ready.insert(0, first)
            first.offsets = [at for at, _, _ in due]
            first.tokens = [token for _, token, _ in due]
            first.logprobs = [entry for _, _, entry in due] if self._logprobs else None
        for event in ready:
            event.index = self.index
        return list(ready)


def is_silent(event: OutputEvent) -> bool:
    """Whether clients receive nothing of an event."""
    return isinstance(event, ToolCallEnd) or (isinstance(event, Text) and not event.text)
