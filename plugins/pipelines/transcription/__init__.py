"""The transcription pipeline (Whisper): audio to text with timestamps."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import LogitsProcessor, Pipeline, hookimpl


@hookimpl
def ostro_pipelines() -> Iterator[Pipeline]:
    """Yield the pipeline of the task "transcribe"."""
    yield Pipeline(
        name="transcribe", task="transcribe", pipeline=f"{__name__}.pipeline:Transcription"
    )


@hookimpl
def ostro_logits_processors() -> Iterator[LogitsProcessor]:
    """Yield the logits processor of Whisper's timestamp rules."""
    yield LogitsProcessor(name="transcription", processor=f"{__name__}.rules:Rules")
