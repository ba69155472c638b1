"""The transcription pipeline: sound becomes text with times."""

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
    """Yield the rules by which Whisper writes times between its words."""
    yield LogitsProcessor(name="transcription", processor=f"{__name__}.rules:Rules")
