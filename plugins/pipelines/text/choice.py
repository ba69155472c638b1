"""One choice of a response: converts token ids to text, up to a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from ostro.pipelines import Detokenizer, Finish, Stop, TextDelta, TokenLogprobs, TokenOutput

Entry = tuple[int, int, TokenLogprobs | None]
"""The offset of a token's text, the token, and its log probability."""


class Choice:
    """The state of one choice; `tokens` counts generated tokens, `done` is set at its end."""

    def __init__(
        self,
        index: int,
        detokenizer: Detokenizer,
        stop: Stop,
        *,
        min_tokens: int = 0,
        logprobs: bool = False,
    ) -> None:
        """Stop strings count only after `min_tokens`; `logprobs`: report those of tokens."""
        self.index = index
        self.tokens = 0
        self.done = False
        self._detokenizer, self._stop = detokenizer, stop
        self._min_tokens = min_tokens
        self._length = self._sent = 0
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
        return self._delta(text, all=True)

    def add(self, output: TokenOutput) -> TextDelta:
        """The text that is final after an output.

        Text that may begin a stop string is withheld, with the logprobs of its tokens.
        """
        text = ""
        entries: Sequence[TokenLogprobs | None] = output.logprobs or [None] * len(output.tokens)
        for token, entry in zip(output.tokens, entries, strict=True):
            self.tokens += 1
            if self._entries is not None:
                self._entries.append((self._length, token, entry))
            text += self._pass(self._detokenizer.add([token]))
            if self._stop.found is not None:
                return self._end(text, "stop", self._stop.found)
        if output.finish is None:
            return self._delta(text)
        text += self._pass(self._detokenizer.finish())
        if self._stop.found is not None:
            return self._end(text, "stop", self._stop.found)
        return self._end(text + self._stop.rest(), output.finish, output.stopped_by)

    def _pass(self, text: str) -> str:
        self._length += len(text)
        return text if self.tokens <= self._min_tokens else self._stop.add(text)

    def _end(self, text: str, finish: Finish, stopped_by: str | int | None) -> TextDelta:
        self.done = True
        if self._entries and isinstance(stopped_by, str):
            end = self._sent + len(text)
            self._entries = [each for each in self._entries if each[0] < end]
        delta = self._delta(text, all=True)
        delta.finish, delta.stopped_by = finish, stopped_by
        return delta

    def _delta(self, text: str, all: bool = False) -> TextDelta:
        """A delta, with the logprobs of the tokens whose text starts in it."""
        self._sent += len(text)
        delta = TextDelta(index=self.index, text=text)
        if self._entries:
            ripe = [each for each in self._entries if all or each[0] < self._sent]
            self._entries = self._entries[len(ripe) :]
            delta.offsets = [at for at, _, _ in ripe]
            delta.tokens = [token for _, token, _ in ripe]
            delta.logprobs = [entry for _, _, entry in ripe] if ripe else None
        return delta
