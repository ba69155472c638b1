"""Fixtures: a chat whose model answers from a list, without weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from ostro.core.errors import ModelNotFound, OstroError, RequestError, Unsupported
from ostro.core.messages.prompt import Prompt
from ostro.core.messages.requests import Sampling
from ostro.core.pipeline import SamplingDefaults
from ostro.entrypoints.cli.chat.conversation import Conversation
from ostro.entrypoints.cli.chat.display import PlainDisplay
from ostro.entrypoints.cli.chat.session import Session
from ostro.entrypoints.local_model import Piece
from ostro.plugins.parsers.generic.parser import FallbackParser
from ostro.plugins.pipelines.text.prepare import Preparer


class FakeModel:
    """The part of `LocalModel` that a chat uses. `answers` are texts, or errors to raise.

    `prompts` are the conversations it was asked, `used` the keyword arguments of each stream.
    """

    def __init__(self, name: str = "fake", answers: Sequence[str | OstroError] = ()) -> None:
        self.name, self.answers, self.closed = name, list(answers), False
        self.prompts: list[list[dict[str, Any]]] = []
        self.used: list[dict[str, Any]] = []
        self.adapters: list[Any] = []
        self.local = SimpleNamespace(interrupted=False)
        self.tokenizer: Any = SimpleNamespace(
            decode=lambda ids, skip_special: "", control_ids=frozenset(), eos_ids=frozenset()
        )
        record = SimpleNamespace(name="fake", inputs=None)
        defaults = SamplingDefaults({"min_p": 0.05}, {"min_p": "fallback"})
        self.model: Any = SimpleNamespace(
            context=1000,
            vocab=100,
            name=name,
            architecture=record,
            sampling=defaults,
        )
        self.text, self.sampling_defaults = self, defaults

    def sampling(self, values: Mapping[str, Any]) -> Sampling:
        return Preparer.sampling(self, values)  # type: ignore[arg-type]

    def check_media(self, media: Sequence[Any]) -> None:
        raise Unsupported(f"{self.name} accepts text only, not {media[0].kind}")

    def has_template(self, adapters: Mapping[str, float]) -> bool:
        return True

    def mixture(self, adapters: Mapping[str, float], tokens: Sequence[int]) -> None:
        if unknown := adapters.keys() - {"sql"}:
            raise RequestError(f"no adapter {min(unknown)!r}")

    def prompt(self, conversation: Any, **options: Any) -> Prompt:
        self.prompts.append([dict(message) for message in conversation])
        self.used.append(options)
        return Prompt(tokens=[1] * 10)

    def parser(self, prompt: Prompt, **options: Any) -> FallbackParser:
        return FallbackParser("", ())

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[Piece]:
        self.used[-1] |= options
        answer = self.answers.pop(0) if self.answers else f"answer {len(self.prompts)}"
        if isinstance(answer, OstroError):
            raise answer
        for i, letter in enumerate(answer):
            if self.local.interrupted or letter == "\x03":
                self.local.interrupted = False
                raise KeyboardInterrupt
            yield Piece(letter, token=i)
        yield Piece("", finish="stop")

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
