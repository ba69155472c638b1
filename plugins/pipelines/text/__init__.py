"""The text pipeline: chats and completions."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Pipeline, hookimpl


@hookimpl
def ostro_pipelines() -> Iterator[Pipeline]:
    """Yield the pipeline of the task "text"."""
    yield Pipeline(name="text", task="text", pipeline=f"{__name__}.pipeline:Text")
