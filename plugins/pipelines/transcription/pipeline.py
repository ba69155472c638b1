"""The transcription pipeline: sound goes to the engine window by window, and text comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np

from ostro import resolve
from ostro.errors import RequestError, Unsupported, UsageError
from ostro.pipelines import AdapterRef, AsyncEngine, Samples, ServedModel
from ostro.plugins.pipelines.transcription.controls import Controls
from ostro.plugins.pipelines.transcription.options import Options
from ostro.plugins.pipelines.transcription.task import AudioModel, TranscriptionTask
from ostro.plugins.pipelines.transcription.transcript import Segment, Transcript
from ostro.plugins.pipelines.transcription.window import STEPS

SHORTEST = 0.1
"""Seconds of the shortest sound."""


class Transcription:
    """Writes down what is said in sounds, with an engine."""

    def __init__(self, model: ServedModel, engine: AsyncEngine) -> None:
        """Raises Unsupported where the model takes no audio."""
        if model.architecture.inputs is None:
            raise Unsupported(f"{model.name} takes no audio")
        self.model, self.engine = model, engine
        self.hearing: AudioModel = resolve(model.architecture.inputs)(model.raw_config, model.path)
        self.controls = Controls.read(model.require_tokenizer(), model.path)

    async def transcribe(
        self, audio: Any, *, adapters: Sequence[AdapterRef] = (), **options: Any
    ) -> Transcript:
        """What is said in a sound: a file, the bytes of one, or samples float32 [n] at 16 kHz.

        `options` are those of `Options`. Raises RequestError for what is no sound, or for an option
        that is wrong, AdapterError for `adapters` that cannot be had.
        """
        work = self.work(options, adapters)
        spectrum = await asyncio.to_thread(self.listen, audio)
        segments = [segment async for segment in work.segments(spectrum)]
        return Transcript(
            text="".join(segment.text for segment in segments).strip(),
            language=work.language,
            duration=spectrum.shape[1] / (2 * STEPS),
            segments=segments,
            task=work.options.task,
            generations=work.generations,
        )

    async def stream(self, audio: Any, work: TranscriptionTask) -> AsyncGenerator[Segment, None]:
        """The segments of a sound, each window's as soon as it is written; see `transcribe`."""
        spectrum = await asyncio.to_thread(self.listen, audio)
        async with aclosing(work.segments(spectrum)) as segments:
            async for segment in segments:
                yield segment

    def work(
        self, options: dict[str, Any], adapters: Sequence[AdapterRef] = ()
    ) -> TranscriptionTask:
        """What is to be done with a sound. Raises RequestError for an option that is wrong."""
        asked = Options.of(options)
        return TranscriptionTask(
            self.model, self.engine, self.hearing, self.controls, asked, tuple(adapters)
        )

    def listen(self, audio: Any) -> Samples:
        """The spectrum of a sound."""
        rate = self.hearing.rate
        if isinstance(audio, str | Path):
            try:
                audio = Path(audio).read_bytes()
            except OSError as error:
                raise UsageError(f"{audio}: {error.strerror}") from None
        if isinstance(audio, bytes | bytearray | memoryview):
            assert self.model.media_worker is not None, "a model that hears has inputs"
            audio = self.model.media_worker.listen(bytes(audio), rate)
        samples = np.asarray(audio, np.float32)
        if samples.ndim != 1 or not np.isfinite(samples).all():
            raise RequestError("samples are float32 [n], one channel, all of them numbers")
        if len(samples) < SHORTEST * rate:
            raise RequestError(
                f"the sound is {len(samples) / rate:.3f} s long; {SHORTEST} s are the least",
                param="file",
            )
        return self.hearing.spectrum(samples)
