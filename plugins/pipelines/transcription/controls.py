"""Whisper's control tokens: where a text begins and ends, languages, tasks and times."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ostro.errors import ConfigError, RequestError, TokenizerError, nearest
from ostro.pipelines import Tokenizer
from ostro.plugins.pipelines.transcription.languages import code_of, name_of
from ostro.plugins.pipelines.transcription.request import TranscriptionRequest

TASKS = ("transcribe", "translate")


@dataclass(frozen=True, kw_only=True)
class Controls:
    """Ids of a model's control tokens.

    `start` and `end` of a text; `languages` by code and `tasks` by name, both empty for models that
    know English only; `earlier` comes before the text that precedes a sound; `silence` stands for a
    sound without speech; from `times` on ids are times, the one before says that there are none.
    `never` and `never_first` are what a model is kept from saying, at all and as its first token;
    `latest` is the last time that may come first.
    """

    start: int
    end: int
    times: int
    silence: int
    earlier: int | None = None
    languages: Mapping[str, int]
    tasks: Mapping[str, int]
    never: tuple[int, ...] = ()
    never_first: tuple[int, ...] = ()
    latest: int | None = None

    @classmethod
    def read(cls, tokenizer: Tokenizer, folder: Path) -> Controls:
        """Those of a model's tokenizer and its generation_config.json, if it has one.

        Raises TokenizerError where the tokenizer is not one of Whisper's, ConfigError where the
        file is no JSON.
        """
        said = read_config(folder / "generation_config.json")
        start, end, none = (
            required(tokenizer, f"<|{name}|>")
            for name in ("startoftranscript", "endoftext", "notimestamps")
        )
        tasks = {name: tokenizer.id(f"<|{name}|>") for name in TASKS}
        known = {name: id for name, id in tasks.items() if id is not None}
        languages = {
            tokenizer.token(id)[2:-2]: id for id in range(start + 1, min(known.values(), default=0))
        }
        multilingual = said.get("is_multilingual", bool(languages))
        return cls(
            start=start,
            end=end,
            times=none + 1,
            silence=none - 1,
            earlier=tokenizer.id("<|startofprev|>"),
            languages=languages if multilingual else {},
            tasks=known if multilingual else {},
            never=tuple(said.get("suppress_tokens") or ()),
            never_first=tuple(said.get("begin_suppress_tokens") or ()),
            latest=said.get("max_initial_timestamp_index"),
        )

    def language(self, asked: str) -> str:
        """The code of the language asked for. Raises RequestError for one that is not known."""
        code = code_of(asked)
        if not self.languages and code == "en":
            return code
        if code not in self.languages:
            known = {*self.languages, *map(name_of, self.languages)} or {"en"}
            raise RequestError(
                f"the model knows no language {asked!r:.40}{nearest(asked, known)}",
                param="language",
            )
        return code

    def check_task(self, task: str) -> None:
        """Raise RequestError for a task that the model does not know."""
        known = [*self.tasks] or ["transcribe"]
        if task not in known:
            raise RequestError(
                f"task {task!r:.40}: the model does {', '.join(known)}", param="task"
            )

    def opening(self, language: str, task: str, times: bool) -> list[int]:
        """The tokens that a text begins with."""
        tokens = [self.start]
        if self.languages:
            tokens += [self.languages[language], self.tasks[task]]
        return tokens if times else [*tokens, self.times - 1]

    def rules(self, times: bool) -> TranscriptionRequest:
        """By what rules a text is written, with times or without."""
        return TranscriptionRequest(
            banned=self.never,
            first=self.never_first,
            timestamps=self.times if times else None,
            latest=self.latest,
            end=self.end,
        )


def read_config(file: Path) -> dict[str, Any]:
    """A JSON object in a file; empty where there is no such file."""
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise ConfigError(f"{file.name}: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{file.name} is not an object")
    return found


def required(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.id(token)
    if found is None:
        raise TokenizerError(f"the tokenizer has no {token}: it is not one of Whisper's")
    return found
