"""The options of a transcription."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ostro.errors import RequestError, nearest


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a transcription.

    language: a code or a name (None: detect, among `languages` if given); task: "transcribe", or
    "translate" into English; keywords: words that precede the prompt; prompt: text before every
    window that sets the style; with `follow`, before the first window only, and the transcript so
    far precedes the others. logprobs: return those of the tokens. words: return the words with
    their times, which takes another pass over each window. temperatures: tried in order while the
    compression ratio of a text exceeds `repetitive` or its mean log probability is below
    `improbable`; a window is skipped if its log probability is that low and the probability of no
    speech exceeds `silent`. None disables a check. times: generate timestamps; without them,
    audio is one window.
    """

    language: str | None = None
    languages: tuple[str, ...] = ()
    task: str = "transcribe"
    keywords: tuple[str, ...] = ()
    prompt: str | None = None
    temperatures: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    repetitive: float | None = 2.4
    improbable: float | None = -1.0
    silent: float | None = 0.6
    follow: bool = False
    times: bool = True
    logprobs: bool = False
    words: bool = False
    seed: int | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """Options from keywords; a single `temperature` other than 0 stands for `temperatures`.

        Raises RequestError for options that are unknown, mistyped or out of range.
        """
        values = {n: value for n, value in given.items() if value is not None or n in CHECKS}
        if temperature := values.pop("temperature", 0):
            values["temperatures"] = (temperature,)
        for name in values:
            if name not in cls.__struct_fields__:
                near = nearest(name, cls.__struct_fields__)
                raise RequestError(f"unknown transcription option {name!r:.40}{near}", param=name)
        try:
            options = msgspec.convert(values, cls)
        except msgspec.ValidationError as error:
            raise RequestError(f"transcription: {error}") from None
        if options.language and options.languages:
            raise RequestError("give either language or languages", param="languages")
        if not options.temperatures or not all(0 <= t <= 2 for t in options.temperatures):
            raise RequestError("a temperature is not within 0..2", param="temperature")
        return options


CHECKS = ("repetitive", "improbable", "silent")
"""Options that None disables; for all others None selects the default."""
