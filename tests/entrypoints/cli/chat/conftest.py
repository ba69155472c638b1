"""Fixtures: a chat whose model answers from a list, without weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from ostro.core.errors import ModelNotFound, OstroError, RequestError
from ostro.core.messages.text import ChoiceEnd, Event, Text, Usage
from ostro.core.output import Piece
from ostro.core.pipeline import SamplingDefaults
from ostro.entrypoints.cli.chat.conversation import Conversation
from ostro.entrypoints.cli.chat.display import PlainDisplay
from ostro.entrypoints.cli.chat.session import Session
from ostro.plugins.parsers.generic.parser import FallbackParser


class FakeAnswer:
    """The part of `LocalAnswer` that a chat uses: one token per character, or an error."""

    def __init__(
        self, model: FakeModel, answer: str | OstroError, parser: FallbackParser | None
    ) -> None:
        self.model, self.answer, self.parser = model, answer, parser
        self.usage = Usage(prompt=10)

    def __iter__(self) -> Iterator[Event]:
        if isinstance(self.answer, OstroError):
            raise self.answer
        for i, letter in enumerate(self.answer):
            if self.model.local.interrupted or letter == "\x03":
                self.model.local.interrupted = False
                raise KeyboardInterrupt
            self.usage.completion += 1
            if self.parser is None:
                yield Text(letter, tokens=[i])
                continue
            yield Text(tokens=[i])
            yield from self.parser.add(Piece(letter))
        yield from self.interrupt()
        yield ChoiceEnd("stop")

    def interrupt(self) -> Sequence[Event]:
        return [] if self.parser is None else self.parser.finish()

    def close(self) -> None: ...


class FakeModel:
    """The part of `LocalModel` that a chat uses. `answers` are texts, or errors to raise.

    `prompts` are the prompts it was asked, `used` the keyword arguments of each stream.
    """

    def __init__(self, name: str = "fake", answers: Sequence[str | OstroError] = ()) -> None:
        self.name, self.answers, self.closed = name, list(answers), False
        self.prompts: list[list[dict[str, Any]]] = []
        self.used: list[dict[str, Any]] = []
        self.adapters: list[Any] = []
        self.local = SimpleNamespace(interrupted=False)
        record = SimpleNamespace(name="fake", inputs=None)
        defaults = SamplingDefaults({"min_p": 0.05}, {"min_p": "fallback"})
        self.model: Any = SimpleNamespace(
            context=1000,
            vocab=100,
            name=name,
            architecture=record,
            sampling=defaults,
        )
        self.sampling_defaults = defaults

    def has_template(self, adapters: Mapping[str, float]) -> bool:
        return True

    def mixture(self, adapters: Mapping[str, float], tokens: Sequence[int]) -> None:
        if unknown := adapters.keys() - {"sql"}:
            raise RequestError(f"no adapter {min(unknown)!r}")

    def stream(self, prompt: Any, **options: Any) -> FakeAnswer:
        self.prompts.append(prompt)
        self.used.append(options)
        answer = self.answers.pop(0) if self.answers else f"answer {len(self.prompts)}"
        return FakeAnswer(self, answer, None if isinstance(prompt, str) else FallbackParser("", ()))

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeLoader:
    """Loads `FakeModel`s; `missing` are references without a model, `broken` those that fail."""

    missing: tuple[str, ...] = ("missing",)
    broken: tuple[str, ...] = ("broken",)
    loaded: list[str | None] = field(default_factory=list)

    def check(self, reference: str) -> None:
        if reference in self.missing:
            raise ModelNotFound(f"{reference}: no such model")

    def load(self, reference: str | None) -> Any:
        self.loaded.append(reference)
        if reference in self.broken:
            raise ModelNotFound(f"{reference}: no weights")
        return FakeModel(reference or "fake")


Open = Callable[..., Session]


@pytest.fixture
def open_session() -> Open:
    """Make a chat with a `FakeModel` that gives these answers."""

    def make(*answers: str | OstroError, raw: bool = False) -> Session:
        model: Any = FakeModel(answers=answers)
        return Session(model, Conversation(), PlainDisplay(), FakeLoader(), raw)

    return make
