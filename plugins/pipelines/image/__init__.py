"""The pipeline of image generation."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Pipeline, hookimpl


@hookimpl
def ostro_pipelines() -> Iterator[Pipeline]:
    """Yield the pipeline of the task "draw"."""
    yield Pipeline(name="draw", task="draw", pipeline=f"{__name__}.pipeline:Images")
