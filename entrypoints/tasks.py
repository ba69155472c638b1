"""Models for other tasks than text, from Python: what a server's pipelines do, in plain calls."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ostro.core.engine.start import open_engine
from ostro.core.errors import UsageError
from ostro.core.ipc.client import ThreadEngine
from ostro.core.ipc.messages import AdapterInfo
from ostro.core.plugins.manager import PluginManager
from ostro.core.served import Served
from ostro.entrypoints.found import Found, pipelines_of
from ostro.entrypoints.python import Adapters, wanted_of

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


class Tasks:
    """A loaded model and its engine, each in a thread of this process. Close it, or use it in a
    `with`.
    """

    def __init__(
        self,
        found: Found,
        plugins: PluginManager,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Load what was found. Raises an OstroError that says what is wrong."""
        self.name, self.path, self.tasks = found.name, found.path, found.tasks
        self.tokenizer, self.closed = found.tokenizer, False
        self.explain: list[str] = []
        self.served: Served | None = None

        def build(report: Any) -> Any:
            def told(what: str, done: int, total: int) -> None:
                if progress is not None and what == "reading weights":
                    progress(done, total)

            house, self.explain = open_engine([found.load], plugins, told)
            return house

        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="ostro", daemon=True)
        self.thread.start()
        self.engine = ThreadEngine(build)
        self.engine.patience = math.inf
        try:
            info = self.wait(self.engine.start())
            self.served = found.served(self.engine, info.first)
            self.pipelines = pipelines_of(self.served, found.tasks, plugins)
        except BaseException:
            self.close()
            raise

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Do asynchronous work in the loop of this model."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def pipeline(self, task: str) -> Any:
        """What does a task. Raises UsageError where the model is closed or does not do it."""
        if self.closed:
            raise UsageError(f"{self.name} is closed; load it again")
        if task not in self.pipelines:
            raise UsageError(f"{self.name} does {', '.join(self.pipelines)}, not {task}")
        return self.pipelines[task]

    def embed(
        self,
        inputs: str | Sequence[str],
        *,
        prompt: str | None = None,
        dimensions: int | None = None,
        adapters: Adapters = (),
    ) -> Tensor:
        """One vector per text: [n, d] float32.

        `prompt` names one of the model's prompts, put before every text; `dimensions` keeps the
        first so many and makes the length 1 again (Matryoshka); `adapters` are names, or scales by
        name. Raises UsageError, RequestError or AdapterError.
        """
        import torch

        pipeline = self.pipeline("embed")
        wanted = wanted_of(adapters)
        work = pipeline.embed(many(inputs), prompt=prompt, dimensions=dimensions, adapters=wanted)
        return torch.tensor(self.wait(work)[0])

    def rerank(self, query: str, documents: Sequence[str], *, adapters: Adapters = ()) -> list[Any]:
        """The documents by how well they answer the query, the best first: `index` and `score`."""
        pipeline, wanted = self.pipeline("rerank"), wanted_of(adapters)
        return list(self.wait(pipeline.rerank(query, documents, adapters=wanted))[0])

    def classify(
        self, inputs: str | Sequence[str], *, adapters: Adapters = ()
    ) -> list[dict[str, float]]:
        """The probability of every label, by text."""
        pipeline, wanted = self.pipeline("classify"), wanted_of(adapters)
        return list(self.wait(pipeline.classify(many(inputs), adapters=wanted))[0])

    def transcribe(self, audio: Any, *, adapters: Adapters = (), **options: Any) -> Any:
        """What is said in a file, in bytes of one, or in samples float32 [n] at 16 kHz: a
        transcript with `text`, `language` and `segments`. `options` are the pipeline's.
        """
        pipeline, wanted = self.pipeline("transcribe"), wanted_of(adapters)
        return self.wait(pipeline.transcribe(audio, adapters=wanted, **options))

    def speak(self, text: str, *, adapters: Adapters = (), **options: Any) -> Any:
        """Sound that says a text: `samples` float32 [n] at `rate`, with `save(path)`."""
        pipeline, wanted = self.pipeline("speak"), wanted_of(adapters)
        return self.wait(pipeline.speak(text, adapters=wanted, **options))

    def draw(
        self,
        prompt: str,
        *,
        adapters: Adapters = (),
        progress: Callable[[int, int, list[Any]], None] | None = None,
        **options: Any,
    ) -> Any:
        """Pictures of a prompt: PIL images. `progress` is told (steps done, in all, previews)."""
        options["adapters"] = wanted_of(adapters)
        return self.wait(self.pipeline("draw").draw(prompt, progress=progress, **options))

    def load_adapter(
        self, name: str, reference: str | Path, *, inplace: bool = False, pinned: bool = False
    ) -> AdapterInfo:
        """Read an adapter and have a name go to it; what it is. Raises AdapterError.

        `inplace` lets a name that is taken go to another adapter.
        """
        fields = {"name": name, "reference": str(reference), "inplace": inplace, "pinned": pinned}
        told = self.adapt("load", **fields)
        return next(facts for facts in told if facts.name == name)

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter; what runs with it goes on to its end. Raises AdapterNotFound."""
        self.adapt("unload", name=name)

    @property
    def adapters(self) -> list[AdapterInfo]:
        """What is known of every adapter."""
        return self.adapt("list")

    def adapt(self, do: Literal["load", "unload", "list"], **fields: Any) -> list[AdapterInfo]:
        """See `AsyncEngine.adapt`. Raises UsageError where the model is closed."""
        if self.closed:
            raise UsageError(f"{self.name} is closed; load it again")
        return self.wait(self.engine.adapt(do, **fields))

    def close(self) -> None:
        """Stop the engine. Closing twice is closing once."""
        if self.closed:
            return
        self.closed = True
        if self.served is not None:
            self.served.close()
        self.wait(self.engine.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def __enter__(self) -> Tasks:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def many(inputs: str | Sequence[str]) -> list[str]:
    return [inputs] if isinstance(inputs, str) else list(inputs)
