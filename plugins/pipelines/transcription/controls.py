"""Whisper's control tokens: start, end, languages, tasks and timestamps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ostro.checkpoints import read_config
from ostro.errors import ConfigError, RequestError, TokenizerError, nearest
from ostro.pipelines import Tokenizer
from ostro.plugins.pipelines.transcription.languages import code_of, name_of
from ostro.plugins.pipelines.transcription.request import TranscriptionRequest

TASKS = ("transcribe", "translate")


@dataclass(frozen=True, kw_only=True)
class Controls:
    """Ids of a model's control tokens.

    `start` and `end` of a transcript; `languages` by code and `tasks` by name, both empty for
    English-only models; `earlier` precedes the text of a prompt; `silence` marks audio without
    speech; ids from `times` on are timestamps, and the id before is <|notimestamps|>. The tokens
    `never` are suppressed always, `never_first` as the first token; `latest` is the last timestamp
    that may come first. The cross attention of the decoder's `alignment_heads`, (layer, head) each,
    follows the audio.
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
    alignment_heads: tuple[tuple[int, int], ...] = ()

    @classmethod
    def read(cls, tokenizer: Tokenizer, folder: Path) -> Controls:
        """The control tokens of a tokenizer and of generation_config.json, if present.

        Raises TokenizerError if the tokenizer is not Whisper's, ConfigError if the file is
        malformed.
        """
        generation = read_config(folder / "generation_config.json", missing_ok=True)
        start, end, none = (
            required(tokenizer, f"<|{name}|>")
            for name in ("startoftranscript", "endoftext", "notimestamps")
        )
        tasks = {name: tokenizer.id(f"<|{name}|>") for name in TASKS}
        known = {name: id for name, id in tasks.items() if id is not None}
        languages = {
            tokenizer.token(id)[2:-2]: id for id in range(start + 1, min(known.values(), default=0))
        }
        multilingual = generation.get("is_multilingual", bool(languages))
        return cls(
            start=start,
            end=end,
            times=none + 1,
            silence=none - 1,
            earlier=tokenizer.id("<|startofprev|>"),
            languages=languages if multilingual else {},
            tasks=known if multilingual else {},
            never=tuple(generation.get("suppress_tokens") or ()),
            never_first=tuple(generation.get("begin_suppress_tokens") or ()),
            latest=generation.get("max_initial_timestamp_index"),
            alignment_heads=read_heads(generation),
        )

    def language(self, name: str) -> str:
        """The code of a language. Raises RequestError for an unknown language."""
        code = code_of(name)
        if not self.languages and code == "en":
            return code
        if code not in self.languages:
            known = {*self.languages, *map(name_of, self.languages)} or {"en"}
            raise RequestError(
                f"the model does not support the language {name!r:.40}{nearest(name, known)}",
                param="language",
            )
        return code

    def check_task(self, task: str) -> None:
        """Raise RequestError for a task that the model does not support."""
        known = [*self.tasks] or ["transcribe"]
        if task not in known:
            raise RequestError(f"task {task!r:.40}: expected {' or '.join(known)}", param="task")

    def opening(self, language: str, task: str, times: bool) -> list[int]:
        """The control tokens at the start of a transcript."""
        tokens = [self.start]
        if self.languages:
            tokens += [self.languages[language], self.tasks[task]]
        return tokens if times else [*tokens, self.times - 1]

    def rules(self, times: bool) -> TranscriptionRequest:
        """The logits rules of a transcript, with or without timestamps."""
        return TranscriptionRequest(
            banned=self.never,
            first=self.never_first,
            timestamps=self.times if times else None,
            latest=self.latest,
            end=self.end,
        )


def read_heads(generation: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    """The alignment heads of a generation config; empty if it has none."""
    try:
        return msgspec.convert(generation.get("alignment_heads") or (), tuple[tuple[int, int], ...])
    except msgspec.ValidationError as error:
        raise ConfigError(f"generation_config.json: alignment_heads: {error}") from None


def required(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.id(token)
    if found is None:
        raise TokenizerError(f"the tokenizer has no {token}; it is not a Whisper tokenizer")
    return found
