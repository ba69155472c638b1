"""Speech of a text: a job of the engine, whose slices tell how far it is."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import cached_property

from msgspec.structs import replace

from ostro import Inputs, JobRequest, resolve
from ostro.errors import RequestError, Unsupported
from ostro.pipelines import AdapterRef, AsyncEngine, JobOutput, ServedModel
from ostro.plugins.pipelines.speech.sound import Sound, check_format

MAX_TEXT = 4096
"""Characters of a text, as OpenAI's route has it."""


class Speech:
    """Speaks with one model. Makes its requests outside of the event loop."""

    def __init__(self, model: ServedModel, engine: AsyncEngine) -> None:
        self.model, self.engine, self.name = model, engine, model.name

    @cached_property
    def inputs(self) -> Inputs:
        """What turns texts into what the model reads."""
        assert self.model.architecture.inputs is not None, "a model that speaks has inputs"
        made: Inputs = resolve(self.model.architecture.inputs)(
            self.model.raw_config, self.model.path
        )
        return made

    @staticmethod
    def check_format(format: str) -> None:
        """Raise RequestError or Unsupported for a format that a sound could not be written in."""
        check_format(format)

    async def speak(
        self,
        text: str,
        *,
        voice: str | None = None,
        seed: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        guidance: float | None = None,
        max_seconds: float | None = None,
        audio: object = None,
        adapters: Sequence[AdapterRef] = (),
        progress: Callable[[int, int], None] | None = None,
    ) -> Sound:
        """The sound of a text.

        temperature, top_p: how freely it is spoken, 0 for no chance at all; guidance: how closely
        the text is followed; None takes what the model was made for. The same seed says a text the
        same way again. `progress` is told (slices done, in all), of which some may not be needed.
        Raises RequestError; Unsupported for `audio`, a voice to be imitated.
        """
        if audio is not None:
            raise Unsupported(
                "speech in the voice of a recording is not implemented", param="audio"
            )
        given = {
            "temperature": temperature,
            "top_p": top_p,
            "guidance": guidance,
            "max_seconds": max_seconds,
        }
        request = await asyncio.to_thread(self.prepare, text, voice, seed, given)
        request = replace(request, adapters=tuple(adapters))
        last = JobOutput(id=request.id)
        async with aclosing(self.engine.work(request)) as outputs:
            async for last in outputs:
                if progress is not None:
                    progress(last.done, last.total)
        samples, rate = last.arrays["samples"].numpy(), int(last.arrays["rate"].numpy()[0])
        return Sound(samples, rate, list(last.generations) if adapters else None)

    def prepare(
        self, text: str, voice: str | None, seed: int | None, given: dict[str, float | None]
    ) -> JobRequest:
        if not text.strip():
            raise RequestError("the text is empty", param="input")
        if len(text) > MAX_TEXT:
            raise RequestError(
                f"the text has {len(text)} characters; at most {MAX_TEXT}", param="input"
            )
        if seed is None:
            seed = secrets.randbits(32)
        elif not isinstance(seed, int) or not 0 <= seed < 2**63:
            raise RequestError(f"seed={seed!r:.40} is not within 0..{2**63 - 1}", param="seed")
        asked = {name: number(name, x) for name, x in given.items() if x is not None}
        values = {**self.inputs.speech(text, voice, asked), "seed": seed}
        return JobRequest(id=secrets.token_hex(12), model=self.name, values=values)


def number(name: str, value: float) -> float:
    """The value. Raises RequestError where it is no number."""
    real = isinstance(value, int | float) and not isinstance(value, bool)
    if not real or not math.isfinite(value):
        raise RequestError(f"{name}={value!r:.40} is not a number", param=name)
    return float(value)
