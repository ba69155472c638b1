"""The pipelines of a model object of the Python API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, overload

from ostro.core.errors import UsageError
from ostro.core.pipeline import TextPipeline
from ostro.core.tasks import (
    ImagePipeline,
    SpeechPipeline,
    TaskPipeline,
    TranscriptionPipeline,
    VectorPipeline,
    VectorTask,
)


class LocalPipelines:
    """The pipelines of a model by task, which its subclass makes."""

    name: str
    pipelines: Mapping[str, TaskPipeline]
    closed: bool

    @property
    def tasks(self) -> tuple[str, ...]:
        """The supported tasks, the default first."""
        return tuple(self.pipelines)

    @overload
    def pipeline(self, task: Literal["text"]) -> TextPipeline: ...

    @overload
    def pipeline(self, task: VectorTask) -> VectorPipeline: ...

    @overload
    def pipeline(self, task: Literal["transcribe"]) -> TranscriptionPipeline: ...

    @overload
    def pipeline(self, task: Literal["speak"]) -> SpeechPipeline: ...

    @overload
    def pipeline(self, task: Literal["draw"]) -> ImagePipeline: ...

    @overload
    def pipeline(self, task: str) -> TaskPipeline: ...

    def pipeline(self, task: str) -> TaskPipeline:
        """Return the pipeline of a task. Raises UsageError if there is none, and after `close`."""
        self.check_open()
        if task not in self.pipelines:
            raise UsageError(f"{self.name} supports {', '.join(self.tasks)}, not {task}")
        return self.pipelines[task]

    def check_open(self) -> None:
        """Raise UsageError after `close`."""
        if self.closed:
            raise UsageError(f"{self.name} is closed; load it again")
