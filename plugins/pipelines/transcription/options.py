"""What a caller may say about a transcription."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ostro.errors import RequestError, nearest


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How to transcribe.

    language: a code or a name (None: as heard); task: "transcribe", or "translate" into English;
    prompt: text to follow in style, put before every window, or before the first where `follow`
    puts what was written so far before the next. temperatures: tried in turn where a text
    compresses better than `repetitive` or is less probable, per token, than `improbable` (a log
    probability); a window is skipped where that is so and no speech is likelier than `silent`. None
    asks for no such check. times: write times, without which a sound is one window.
    """

    language: str | None = None
    task: str = "transcribe"
    prompt: str | None = None
    temperatures: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    repetitive: float | None = 2.4
    improbable: float | None = -1.0
    silent: float | None = 0.6
    follow: bool = False
    times: bool = True
    seed: int | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """Options from keywords; a single `temperature` other than 0 stands for `temperatures`.

        Raises RequestError naming one that is unknown, mistyped or out of range.
        """
        values = {n: value for n, value in given.items() if value is not None or n in CHECKS}
        if temperature := values.pop("temperature", 0):
            values["temperatures"] = (temperature,)
        for name in values:
            if name not in cls.__struct_fields__:
                near = nearest(name, cls.__struct_fields__)
                raise RequestError(f"no option {name!r:.40} of transcriptions{near}", param=name)
        try:
            options = msgspec.convert(values, cls)
        except msgspec.ValidationError as error:
            raise RequestError(f"transcription: {error}") from None
        if not options.temperatures or not all(0 <= t <= 2 for t in options.temperatures):
            raise RequestError("a temperature is not within 0..2", param="temperature")
        return options


CHECKS = ("repetitive", "improbable", "silent")
"""Options that None switches off; of all others it means the default."""
