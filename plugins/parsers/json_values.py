"""JSON values within an output: where they end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ostro.plugins.parsers.turn import OPEN, Reader, TurnParser, first, held_from


class JsonScanner:
    """Finds the end of a JSON object, array or string that arrives in pieces."""

    def __init__(self) -> None:
        self.depth, self.quoted, self.escaped = 0, False, False

    def end(self, text: str) -> int:
        """The place behind the value, 0 if it goes on."""
        for at, letter in enumerate(text, 1):
            if self.escaped:
                self.escaped = False
                continue
            if self.quoted:
                self.escaped, self.quoted = letter == "\\", letter != '"'
            elif letter == '"':
                self.quoted = True
                continue
            elif letter in "{[":
                self.depth += 1
            elif letter in "}]":
                self.depth -= 1
            if letter in '"}]' and not self.quoted and self.depth <= 0:
                return at
        return 0


class JsonReader(TurnParser):
    """A parser of a notation with JSON in it."""

    def read_arguments(self, ends: Sequence[str]) -> Reader[bool]:
        """Read the arguments of the current call; none are between it and one of the ends.

        Returns whether they are complete.
        """
        yield from self.skip(" \t\r\n")
        while not any(self.held.startswith(end) for end in ends):
            if self.ended or not any(end.startswith(self.held) for end in ends):
                return (yield from self.read_value(self.add_arguments, ends))
            yield
        self.add_arguments("{}")
        return True

    def read_value(self, emit: Callable[[str], None], ends: Sequence[str]) -> Reader[bool]:
        """Emit an object, array or string. Returns whether it is complete.

        The markers `ends`, unless they are text within a JSON string, and the end of the output cut
        it off.
        """
        scanner = JsonScanner()
        while True:
            at, end = first(self.held, ends)
            if not end:
                at = len(self.held) if self.ended else held_from(self.held, ends)
            if size := scanner.end(self.held[:at]):
                emit(self.take(size))
                return True
            emit(self.take(at))
            if end and (OPEN in end or not scanner.quoted):
                return False
            if end:
                scanner.end(self.held[:1])
                emit(self.take(1))
            elif self.ended:
                return False
            else:
                yield
