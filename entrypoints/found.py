"""What is known of a model before its weights are read: where it is, what it does, its words."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ostro.core.chat import ChatTemplate, load_template
from ostro.core.errors import OstroError, TemplateError, Unsupported
from ostro.core.ipc.client import AsyncEngine
from ostro.core.ipc.messages import ModelInfo, ModelSpec
from ostro.core.load.open import (
    architecture_of,
    generation_defaults,
    header_config,
    open_container,
)
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import STARTER, Architecture, Settings, resolve
from ostro.core.served import Served
from ostro.core.tokenizer import Tokenizer, load_tokenizer

WORDLESS = frozenset({"draw", "speak"})
"""Tasks whose models need no tokenizer of the usual place: their pipelines find their own."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A model on this machine. `sampling` is what its own generation config suggests."""

    settings: Settings
    path: Path
    name: str
    raw: Mapping[str, Any]
    architecture: Architecture
    tokenizer: Tokenizer | None
    template: ChatTemplate | None
    sampling: Mapping[str, float]

    @property
    def tasks(self) -> tuple[str, ...]:
        """What it is to do, the first of them by default."""
        return tasks_of(self.settings, self.architecture, self.path)

    @property
    def load(self) -> ModelSpec:
        """What an engine is told to load it."""
        settings = located(self.settings, self.path, self.name)
        return ModelSpec(settings, sorted(self.tokenizer.eos_ids) if self.tokenizer else [])

    def served(self, engine: AsyncEngine, facts: ModelInfo) -> Served:
        """The model as pipelines see it, once its engine is ready."""
        if self.tokenizer is not None and facts.vocab:
            self.tokenizer.check(facts.vocab)
        return Served(
            engine=engine,
            architecture=self.architecture,
            path=self.path,
            name=self.name,
            model=self.name,
            raw=self.raw,
            words=self.tokenizer,
            template=self.template,
            sampling=self.sampling,
            context=facts.context,
            vocab=facts.vocab,
        )


def find(settings: Settings, plugins: PluginManager) -> Found:
    """Find the model, downloading it if need be, and read what is not its weights.

    Raises an OstroError that says what is missing or malformed.
    """
    path = plugins.locate(settings.reference or STARTER, settings)
    words = Path(settings.tokenizer) if settings.tokenizer else path
    with closing(open_container(path, plugins)) as container:
        raw = container.config()
        architecture = architecture_of(container, raw, settings, plugins)
        if raw is None and architecture.inputs is not None:
            raw = header_config(container, architecture)
        if not architecture.tasks:
            raise Unsupported(
                f"{path.name}: {architecture.name} does nothing alone; load a model that is built "
                "on it"
            )
        sampling = suggested(generation_defaults(container))
        metadata = container.metadata if words.suffix == ".gguf" else None
        tokenizer = read_words(words, metadata, tasks_of(settings, architecture, path))
    return Found(
        settings=settings,
        path=path,
        name=name_of(settings),
        raw=raw or {},
        architecture=architecture,
        tokenizer=tokenizer,
        template=None if tokenizer is None else template_of(settings, tokenizer),
        sampling=sampling,
    )


def read_words(
    path: Path, metadata: Mapping[str, Any] | None, tasks: tuple[str, ...]
) -> Tokenizer | None:
    """The tokenizer at a path; None where there is none and no task asks for one."""
    try:
        return load_tokenizer(path, metadata=metadata)
    except OstroError:
        if set(tasks) <= WORDLESS:
            return None
        raise


def tasks_of(settings: Settings, architecture: Architecture, path: Path) -> tuple[str, ...]:
    """What a model is to do: what is asked for; or all that its architecture does, beginning with
    vectors where the folder is one of sentence-transformers.
    """
    tasks = architecture.tasks
    if settings.task is not None:
        return (settings.task,)
    if "embed" in tasks and (path / "modules.json").is_file():
        return ("embed", *(task for task in tasks if task not in ("embed", "text")))
    return tasks


def located(settings: Settings, path: Path, name: str) -> Settings:
    """The settings of a model that lies on this machine now."""
    from dataclasses import replace

    return replace(settings, reference=str(path), name=name, revision=None)


def pipelines_of(served: Served, tasks: tuple[str, ...], plugins: PluginManager) -> dict[str, Any]:
    """A model's pipelines by task, those that there are."""
    records = plugins.collect("pipelines")
    return {task: resolve(records[task].pipeline).of(served) for task in tasks if task in records}


def template_of(settings: Settings, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The chat template of the settings or of the model, if there is one."""
    file = Path(settings.chat_template) if settings.chat_template else None
    if file is None and not tokenizer.chat_template:
        return None
    template = load_template(tokenizer, file=file)
    # The process that renders is started now, not by the first request.
    with suppress(TemplateError):
        template.render([{"role": "user", "content": "hello"}])
    return template


def name_of(settings: Settings) -> str:
    """The name a model is served under: never a path, which would tell about this machine."""
    reference = settings.reference or STARTER
    if settings.name:
        return settings.name
    path = Path(reference)
    return (
        (path.stem if path.suffix == ".gguf" else path.resolve().name)
        if path.exists()
        else reference
    )


def suggested(found: dict[str, Any]) -> dict[str, float]:
    """The sampling that a model's generation config asks for where a request does not."""
    if found.get("do_sample") is False:
        return {"temperature": 0.0}
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    return {name: found[name] for name in names if isinstance(found.get(name), int | float)}
