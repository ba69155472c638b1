"""Text to speech: a request is a job of the engine, and its slices report progress."""

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
"""The largest number of characters of a text, as in OpenAI's API."""


class Speech:
    """Generates speech with one model. Prepares requests outside of the event loop."""

    def __init__(self, model: ServedModel, engine: AsyncEngine) -> None:
        self.model, self.engine, self.name = model, engine, model.name

    @cached_property
    def inputs(self) -> Inputs:
        """The architecture's Inputs, which prepare texts."""
        assert self.model.architecture.inputs is not None, (
            "architectures of the task speak have inputs"
        )
        inputs: Inputs = resolve(self.model.architecture.inputs)(
            self.model.raw_config, self.model.path
        )
        return inputs

    @property
    def voices(self) -> list[str]:
        """The names of the model's voices."""
        return list(self.inputs.voices)

    @staticmethod
    def check_format(format: str) -> None:
        """Raise RequestError or Unsupported for an audio format that cannot be written."""
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
        """Generate the speech of a text.

        temperature, top_p: as for text, temperature 0 is greedy; guidance: scale of classifier-free
        guidance; None selects the model's default. The same seed gives the same speech. `progress`
        is called with (slices done, all slices); generation may end before the last slice. Raises
        RequestError; Unsupported for `audio`, a voice to clone.
        """
        if audio is not None:
            raise Unsupported("voice cloning is not implemented; leave audio out", param="audio")
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
        samples = self.model.job_array(last.arrays, "samples", "<f4", (None,)).numpy()
        rate = int(self.model.job_array(last.arrays, "rate", "<i8", (1,)).numpy()[0])
        frames = last.arrays.get("frames")
        return Sound(
            samples,
            rate,
            list(last.generations) if adapters else None,
            prompt_tokens=len(request.values["tokens"]),
            tokens=0 if frames is None else int(frames.numpy()[0]),
        )

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
        options = {name: number(name, x) for name, x in given.items() if x is not None}
        values = {**self.inputs.speech(text, voice, options), "seed": seed}
        return JobRequest(id=secrets.token_hex(12), model=self.name, values=values)


def number(name: str, value: float) -> float:
    """The value. Raises RequestError unless it is a number."""
    real = isinstance(value, int | float) and not isinstance(value, bool)
    if not real or not math.isfinite(value):
        raise RequestError(f"{name}={value!r:.40} is not a number", param=name)
    return float(value)
