"""Starts an engine from settings, in the process that owns the device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from ostro.core.engine.adapters import build_adapter_pool, build_registry
from ostro.core.engine.build import (
    build_engine,
    make_pooling_ready,
    make_ready,
    renew,
    set_threads,
    warm_up,
)
from ostro.core.engine.calibration import open_probe
from ostro.core.engine.engine import Engine
from ostro.core.engine.failure import Failures
from ostro.core.engine.jobs import JobEngine
from ostro.core.engine.multi_model import ModelEntry, MultiModelEngine
from ostro.core.engine.pooling import PoolingEngine
from ostro.core.engine.request import DEFAULT
from ostro.core.errors import PluginError
from ostro.core.ipc.loop import ProgressCallback
from ostro.core.ipc.messages import ModelSpec, Requantize
from ostro.core.load.model import LoadedModel, load_model, requantize
from ostro.core.load.open import find
from ostro.core.load.pooling import read_pooling
from ostro.core.nn import EncoderModel, JobModel, Model, TokenModel
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Settings

M = TypeVar("M", bound=Model)

TOKENS = frozenset({"text", "transcribe"})
READINGS = frozenset({"embed", "rerank", "classify"})
JOBS = frozenset({"draw", "speak"})
"""The tasks that the three kinds of work serve."""


def open_engine(
    models: Sequence[ModelSpec],
    plugins: PluginManager,
    report: ProgressCallback,
    *,
    warm: bool = True,
) -> tuple[MultiModelEngine, list[str]]:
    """Load what the settings refer to; give the engine, and what was chosen. With `warm` it has
    drawn some tokens, so that the first request compiles nothing.

    Raises an OstroError that says what is wrong with the settings or a model.
    """
    set_threads(models[0].settings.threads)
    told = lambda done, total: report("reading weights", done, total)  # noqa: E731
    every = [
        load_model(find(m.settings, plugins), m.settings, plugins, told, open_probe=open_probe)
        for m in models
    ]
    entries, explain = dict[str, ModelEntry](), list[str]()
    for model, loaded in zip(models, every, strict=True):
        share = 1 / len(models)
        entry = take_in(loaded, model.settings, plugins, model.eos_ids, share=share)
        plugins.hook.ostro_model_loaded(model=loaded)
        report("warming up", 0, 0)
        if entry.tokens is not None:
            make_ready(entry.tokens, loaded)
            if warm:
                warm_up(entry.tokens)
        if entry.reader is not None:
            make_pooling_ready(entry.reader, loaded, warm=warm)
        changing = partial(change, loaded, model.settings, plugins, entry.tokens)
        entry = replace(entry, loaded=loaded, requantize=changing)
        entries[model.settings.name or DEFAULT] = entry
        explain += loaded.explain
    return MultiModelEngine(entries), explain


def change(
    loaded: LoadedModel,
    settings: Settings,
    plugins: PluginManager,
    engine: Engine | None,
    message: Requantize,
    report: ProgressCallback,
) -> list[str]:
    """Read a model's weights again in the formats that a message asks for; say what was chosen.

    Raises UsageError before anything has changed.
    """
    asked = replace(settings, quant=message.quant, topology=message.topology)
    told = lambda done, total: report("reading weights", done, total)  # noqa: E731
    requantize(loaded, asked, plugins, told, open_probe=open_probe)
    if engine is not None:
        renew(engine, loaded, asked)
    return loaded.explain


def tasks_of(loaded: LoadedModel, settings: Settings) -> frozenset[str]:
    """What a loaded model is to do: what is asked for, or all that it can."""
    return frozenset(loaded.architecture.tasks if settings.task is None else [settings.task])


def face(loaded: LoadedModel, kind: type[M]) -> M:
    """The model as the face that its tasks need. Raises PluginError where it has another."""
    if not isinstance(loaded.model, kind):
        raise PluginError(
            f"architecture {loaded.architecture.name}: {type(loaded.model).__qualname__} is no "
            f"nn.{kind.__name__}, which its tasks ({', '.join(loaded.architecture.tasks)}) need; "
            f"derive it from nn.{kind.__name__}"
        )
    return loaded.model


def take_in(
    loaded: LoadedModel,
    settings: Settings,
    plugins: PluginManager,
    eos_ids: Iterable[int],
    *,
    share: float = 1.0,
) -> ModelEntry:
    """The parts of an engine that a model's tasks ask for, its cache within `share` of the room."""
    tasks = tasks_of(loaded, settings)
    if tasks <= JOBS:
        adapter_pool = build_adapter_pool(loaded, settings, rows=1)
        registry = build_registry(loaded, settings, plugins, adapter_pool)
        job_model = face(loaded, JobModel)  # type: ignore[type-abstract]
        failures = Failures(plugins.explain, loaded.device)
        jobs = JobEngine(job_model, registry, failures)
        return ModelEntry(jobs=jobs, registry=registry)
    face(loaded, TokenModel if tasks & TOKENS else EncoderModel)  # type: ignore[type-abstract]
    engine = build_engine(loaded, settings, plugins, eos_ids, share=share)
    reader = reader_of(loaded, engine) if tasks & READINGS else None
    tokens = engine if tasks & TOKENS else None
    return ModelEntry(tokens=tokens, reader=reader, registry=engine.registry)


def reader_of(loaded: LoadedModel, engine: Engine) -> PoolingEngine:
    """What reads whole inputs with the runner of an engine."""
    causal = bool(engine.blocks.groups)
    folder = loaded.path if loaded.path.is_dir() else loaded.path.parent
    usual = "last" if causal else "mean"
    pooling = read_pooling(folder, usual, loaded.device, loaded.container)
    rows = engine.scheduler.max_rows
    return PoolingEngine(
        engine.runner,
        pooling,
        vocab=engine.vocab,
        context=engine.context,
        max_rows=rows,
        registry=engine.registry,
        failures=engine.failures,
    )
