"""The pooling pipelines: embeddings, reranking, classification."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Pipeline, hookimpl


@hookimpl
def ostro_pipelines() -> Iterator[Pipeline]:
    """Yield the pipelines of the tasks "embed", "rerank" and "classify"."""
    for task in ("embed", "rerank", "classify"):
        yield Pipeline(name=task, task=task, pipeline=f"{__name__}.pipeline:Vectors")
