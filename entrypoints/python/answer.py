"""An answer of a model in this process."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing

from ostro.core.messages.outputs import TokenOutput
from ostro.core.messages.text import ChoiceEnd, Event, Text, Usage
from ostro.core.pipeline import Continuation
from ostro.entrypoints.operations.tasks.text import ChoiceBuilder, CompletionChoice
from ostro.entrypoints.python.engine import LocalEngine


class LocalAnswer(Iterator[Event]):
    """An answer in progress: iterate its events once. Closing it early aborts the request.

    Events are those of `ostro.pipelines`: `Text`, `Reasoning`, `ToolCallStart`,
    `ToolCallArguments`, `ChoiceEnd`; each has the `index` of its choice. Several answers may be in
    progress at once: a step of the engine for one of them advances all.
    """

    def __init__(self, engine: LocalEngine, continuation: Continuation) -> None:
        self._continuation, self._events = continuation, generate(engine, continuation)

    @property
    def usage(self) -> Usage:
        """The token counts so far."""
        return self._continuation.usage

    @property
    def text_stream(self) -> Iterator[str]:
        """The texts among the events, without reasoning."""
        return (event.text for event in self if isinstance(event, Text) and event.text)

    def collect(self) -> list[CompletionChoice]:
        """Read all events. Return what they add up to, one entry per choice."""
        builders = [ChoiceBuilder(i) for i in range(self._continuation.request.sampling.n)]
        with closing(self):
            for event in self:
                builders[event.index].add(event)
        return [builder.build() for builder in builders]

    def interrupt(self) -> list[Event]:
        """Abort the request. Return the events of what was withheld, with finish "abort"."""
        self.close()
        request, events = self._continuation.request, list[Event]()
        for index in range(request.sampling.n):
            output = TokenOutput(id=request.id, index=index, finish="abort")
            events += self._continuation.add(output)
        return events

    def close(self) -> None:
        """Abort the request unless it has ended."""
        self._events.close()

    def __next__(self) -> Event:
        return next(self._events)


def generate(engine: LocalEngine, continuation: Continuation) -> Generator[Event]:
    """Yield the events of a continuation. Closing the generator aborts its request."""
    with closing(engine.generate(continuation.request)) as outputs:
        for output in outputs:
            events = continuation.add(output)
            ended = any(isinstance(event, ChoiceEnd) for event in events)
            if ended and output.finish is None:  # a stop string; the engine sees tokens only
                engine.engine.abort(output.id, output.index)
            yield from events
            if continuation.done:
                return
