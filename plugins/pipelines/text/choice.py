"""One choice of a response: converts token ids to text, reasoning and tool calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ostro.pipelines import (
    CallEnd,
    Detokenizer,
    Finish,
    OutputEvent,
    OutputParser,
    Piece,
    Reasoning,
    Stop,
    Text,
    TextDelta,
    TokenLogprobs,
    TokenOutput,
)

Entry = tuple[int, int, TokenLogprobs | None]
"""The offset of a token's text, the token, and its log probability."""


class Choice:
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
        parser: OutputParser | None = None,
        controls: Mapping[int, str] | None = None,
    ) -> None:
        """Stop strings count only after `min_tokens`; `logprobs`: report those of tokens.

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
        self._entries: list[Entry] | None = [] if logprobs else None

    def echo(
        self,
        text: str,
        tokens: Sequence[int],
        pieces: Sequence[str],
        logprobs: Sequence[TokenLogprobs | None] | None,
    ) -> TextDelta:
        """The prompt as the first delta; `pieces` are the texts of its tokens."""
        if self._entries is not None and logprobs is not None:
            at = 0
            for token, piece, entry in zip(tokens, pieces, logprobs, strict=True):
                self._entries.append((at, token, entry))
                at += len(piece)
        self._length = len(text)
        return self._delta([Text(text)], all=True)

    def add(self, output: TokenOutput) -> TextDelta:
        """The text, reasoning and calls that are final after an output.

        Text that may begin a stop string is withheld, with the logprobs of its tokens.
        """
        known = output.logprobs is not None or self._entries is not None
        if not known and not self._stop.strings and self._parser is None:
            self.tokens += len(output.tokens)
            text = self._detokenizer.add(output.tokens)
            if output.finish is None:
                return TextDelta(index=self.index, text=text)
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
            return self._delta(events)
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
                self._called |= isinstance(event, CallEnd)
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
    ) -> TextDelta:
        self.done = True
        if self._stop.found is not None and self._entries:
            end = self._sent + len(text_of(events))
            self._entries = [each for each in self._entries if each[0] < end]
        if finish == "stop" and self._called and not isinstance(stopped_by, str):
            finish = "tool_calls"
        delta = self._delta(events, all=True)
        delta.finish, delta.stopped_by = finish, stopped_by
        return delta

    def _delta(self, events: Sequence[OutputEvent], all: bool = False) -> TextDelta:
        """A delta, with the logprobs of the tokens whose text starts in it.

        Reasoning and calls have no offsets: with them all known logprobs are sent.
        """
        delta = TextDelta(index=self.index, text=text_of(events))
        self._sent += len(delta.text)
        if any(not isinstance(event, Text) for event in events):
            delta.events = [event for event in events if event != Text("")]
            all = True
        if self._entries:
            ripe = [each for each in self._entries if all or each[0] < self._sent]
            self._entries = self._entries[len(ripe) :]
            delta.offsets = [at for at, _, _ in ripe]
            delta.tokens = [token for _, token, _ in ripe]
            delta.logprobs = [entry for _, _, entry in ripe] if ripe else None
        return delta


def text_of(events: Sequence[OutputEvent]) -> str:
    """The text among events."""
    return "".join(event.text for event in events if isinstance(event, Text))
