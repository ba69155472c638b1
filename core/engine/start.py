"""Opens an engine from settings, in the process that owns the device."""

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
from ostro.core.load.weights import Progress
from ostro.core.nn import EncoderModel, JobModel, Model, TokenModel
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Settings

M = TypeVar("M", bound=Model)

TOKEN_TASKS = frozenset({"text", "transcribe"})
POOLING_TASKS = frozenset({"embed", "rerank", "classify"})
JOB_TASKS = frozenset({"draw", "speak"})
"""The tasks of the three kinds of engines."""


def open_engine(
    models: Sequence[ModelSpec],
    plugins: PluginManager,
    report: ProgressCallback,
    *,
    warm: bool = True,
) -> tuple[MultiModelEngine, list[str]]:
    """An engine over models that are loaded here, and the explanation of what was chosen.

    With `warm` it has generated some tokens, so that the first request compiles nothing. Raises an
    OstroError that says what is wrong with the settings or a model.
    """
    set_threads(models[0].settings.threads)
    progress = partial(report, "reading weights")
    every = [open_weights(model.settings, plugins, progress) for model in models]
    entries, explain = dict[str, ModelEntry](), list[str]()
    for model, loaded in zip(models, every, strict=True):
        share = 1 / len(models)
        entry = build_entry(loaded, model.settings, plugins, model.eos_ids, share=share)
        plugins.hook.ostro_model_loaded(model=loaded)
        report("warming up", 0, 0)
        if entry.tokens is not None:
            make_ready(entry.tokens, loaded)
            if warm:
                warm_up(entry.tokens)
        if entry.reader is not None:
            make_pooling_ready(entry.reader, loaded, warm=warm)
        entries[model.settings.name or DEFAULT] = entry
        explain += loaded.explain
    return MultiModelEngine(entries), explain


def open_weights(
    settings: Settings, plugins: PluginManager, progress: Progress | None = None
) -> LoadedModel:
    """Find the model of the settings and load it. Raises as `open_engine`."""
    path = find(settings, plugins)
    return load_model(path, settings, plugins, progress, open_probe=open_probe)


def change_formats(
    loaded: LoadedModel,
    settings: Settings,
    plugins: PluginManager,
    engine: Engine | None,
    message: Requantize,
    report: ProgressCallback,
) -> list[str]:
    """Read a model's weights again in the formats of a message; gives the new explanation.

    Raises UsageError before anything has changed.
    """
    asked = replace(settings, quant=message.quant, topology=message.topology)
    progress = partial(report, "reading weights")
    requantize(loaded, asked, plugins, progress, open_probe=open_probe)
    if engine is not None:
        renew(engine, loaded, asked)
    return loaded.explain


def face(loaded: LoadedModel, kind: type[M]) -> M:
    """The model as the face that its tasks need. Raises PluginError where it has another."""
    if not isinstance(loaded.model, kind):
        raise PluginError(
            f"architecture {loaded.architecture.name}: {type(loaded.model).__qualname__} is not an "
            f"nn.{kind.__name__}, which its tasks ({', '.join(loaded.architecture.tasks)}) need; "
            f"derive it from nn.{kind.__name__}"
        )
    return loaded.model


def build_entry(
    loaded: LoadedModel,
    settings: Settings,
    plugins: PluginManager,
    eos_ids: Iterable[int],
    *,
    share: float = 1.0,
) -> ModelEntry:
    """The engines that a model's tasks need; its cache takes `share` of the memory for caches."""
    tasks = frozenset(loaded.architecture.tasks if settings.task is None else [settings.task])
    if tasks <= JOB_TASKS:
        pool = build_adapter_pool(loaded, settings, rows=1)
        registry = build_registry(loaded, settings, plugins, pool)
        model = face(loaded, JobModel)  # type: ignore[type-abstract]
        change = partial(change_formats, loaded, settings, plugins, None)
        jobs = JobEngine(model, registry, pool, Failures(plugins.explain, loaded.device))
        return ModelEntry(jobs=jobs, registry=registry, loaded=loaded, requantize=change)
    face(loaded, TokenModel if tasks & TOKEN_TASKS else EncoderModel)  # type: ignore[type-abstract]
    engine = build_engine(loaded, settings, plugins, eos_ids, share=share)
    tokens = engine if tasks & TOKEN_TASKS else None
    return ModelEntry(
        tokens=tokens,
        reader=build_pooling_engine(loaded, engine) if tasks & POOLING_TASKS else None,
        registry=engine.registry,
        loaded=loaded,
        requantize=partial(change_formats, loaded, settings, plugins, tokens),
    )


def build_pooling_engine(loaded: LoadedModel, engine: Engine) -> PoolingEngine:
    """An engine that reads whole inputs with the runner of another."""
    causal = bool(engine.blocks.groups)
    folder = loaded.path if loaded.path.is_dir() else loaded.path.parent
    default = "last" if causal else "mean"
    pooling = read_pooling(folder, default, loaded.device, loaded.container)
    return PoolingEngine(
        engine.runner,
        pooling,
        vocab=engine.vocab,
        context=engine.context,
        max_rows=engine.scheduler.max_rows,
        registry=engine.registry,
        failures=engine.failures,
    )
