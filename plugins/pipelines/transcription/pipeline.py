"""The transcription pipeline: runs the engine on audio window by window."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ostro import resolve
from ostro.errors import RequestError, Unsupported, UsageError
from ostro.pipelines import (
    AdapterRef,
    AsyncEngine,
    Samples,
    Segment,
    ServedModel,
    TranscriptionState,
)
from ostro.plugins.pipelines.transcription.controls import Controls
from ostro.plugins.pipelines.transcription.options import Options
from ostro.plugins.pipelines.transcription.task import AudioModel, TranscriptionTask
from ostro.plugins.pipelines.transcription.transcript import Transcript
from ostro.plugins.pipelines.transcription.window import STEPS

MIN_SECONDS = 0.1
"""The shortest audio in seconds."""


class Transcription:
    """Transcribes audio with one model."""

    def __init__(self, model: ServedModel, engine: AsyncEngine) -> None:
        """Raises Unsupported if the model does not accept audio."""
        if model.architecture.inputs is None:
            raise Unsupported(f"{model.name} does not accept audio")
        self.model, self.engine = model, engine
        assert model.media_worker is not None, "the architecture has inputs"
        self.media_worker = model.media_worker
        self.audio_model: AudioModel = resolve(model.architecture.inputs)(
            model.raw_config, model.path
        )
        self.controls = Controls.read(model.require_tokenizer(), model.path)

    async def transcribe(
        self, audio: Any, *, adapters: Sequence[AdapterRef] = (), **options: Any
    ) -> Transcript:
        """Transcribe audio: a path, the bytes of a file, or samples float32 [n] at 16 kHz.

        `options` are the fields of `Options`. Raises RequestError for invalid audio or options,
        AdapterError for unknown `adapters`.
        """
        task = self.new_task(options, adapters)
        spectrum = await self.media_worker.run(partial(self.compute_spectrum, audio))
        segments = [segment async for segment in task.segments(spectrum)]
        return Transcript(
            text="".join(segment.text for segment in segments).strip(),
            language=task.language,
            duration=spectrum.shape[1] / (2 * STEPS),
            segments=segments,
            words=[w for s in segments for w in s.words] if task.options.words else None,
            task=task.options.task,
            generations=task.generations,
        )

    async def stream(self, audio: Any, task: TranscriptionState) -> AsyncGenerator[Segment, None]:
        """The segments of audio, as soon as each window is transcribed; see `transcribe`."""
        assert isinstance(task, TranscriptionTask), "`task` is one of `new_task`"
        spectrum = await self.media_worker.run(partial(self.compute_spectrum, audio))
        async with aclosing(task.segments(spectrum)) as segments:
            async for segment in segments:
                yield segment

    def new_task(
        self, options: Mapping[str, Any], adapters: Sequence[AdapterRef] = ()
    ) -> TranscriptionTask:
        """A task with these options. Raises RequestError for invalid options."""
        resolved = Options.of(options)
        return TranscriptionTask(
            self.model, self.engine, self.audio_model, self.controls, resolved, tuple(adapters)
        )

    def compute_spectrum(self, audio: Any) -> Samples:
        """The spectrogram of audio."""
        rate = self.audio_model.rate
        if isinstance(audio, str | Path):
            try:
                audio = Path(audio).read_bytes()
            except OSError as error:
                raise UsageError(f"{audio}: {error.strerror}") from None
        if isinstance(audio, bytes | bytearray | memoryview):
            audio = self.media_worker.listen(bytes(audio), rate)
        samples = np.asarray(audio, np.float32)
        if samples.ndim != 1 or not np.isfinite(samples).all():
            raise RequestError("expected samples float32 [n], one channel, all finite")
        if len(samples) < MIN_SECONDS * rate:
            raise RequestError(
                f"the audio has {len(samples) / rate:.3f} s; expected at least {MIN_SECONDS} s",
                param="file",
            )
        return self.audio_model.spectrum(samples)
