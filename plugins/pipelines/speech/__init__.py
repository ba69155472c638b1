"""The pipeline of text to speech."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Pipeline, hookimpl


@hookimpl
def ostro_pipelines() -> Iterator[Pipeline]:
    """Yield the pipeline of the task "speak"."""
    yield Pipeline(name="speak", task="speak", pipeline=f"{__name__}.pipeline:Speech")
