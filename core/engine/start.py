"""Starts the engine of one or more models from settings, in the process that owns the device."""

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
    refresh,
    warm_up,
)
from ostro.core.engine.calibration import open_probe
from ostro.core.engine.engine import Engine
from ostro.core.engine.jobs import JobEngine
from ostro.core.engine.multi_model import ModelEntry, MultiModelEngine
from ostro.core.engine.pooling import PoolingEngine
from ostro.core.engine.request import DEFAULT
from ostro.core.errors import PluginError
from ostro.core.failure import Failures
from ostro.core.ipc.messages import ModelSpec, Requantize
from ostro.core.load.model import LoadedModel, load_model, requantize
from ostro.core.load.open import find
from ostro.core.load.pooling import read_pooling
from ostro.core.nn import EncoderModel, JobModel, Model, TokenModel
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import ProgressCallback, Settings
from ostro.core.threads import THREADS

M = TypeVar("M", bound=Model)

TOKEN_TASKS = frozenset({"text", "transcribe"})
POOLING_TASKS = frozenset({"embed", "rerank", "classify"})
JOB_TASKS = frozenset({"draw", "speak"})
"""The tasks of `Engine`, `PoolingEngine` and `JobEngine`."""


def open_engine(
    models: Sequence[ModelSpec],
    plugins: PluginManager,
    report: ProgressCallback,
    *,
    warm: bool = True,
) -> tuple[MultiModelEngine, list[str]]:
    """Load models and start an engine with them; return it and the lines of --explain.

    With `warm` the engine compiles all kernels first, so that the first request does not wait for
    that. Raises OstroError if the settings or a model are invalid.
    """
    THREADS.set(models[0].settings.threads)
    # All weights before the first cache, whose size is a share of the memory that is left.
    loaded_models = [open_weights(model.settings, plugins, report) for model in models]
    entries, explain = dict[str, ModelEntry](), list[str]()
    for model, loaded in zip(models, loaded_models, strict=True):
        share = 1 / len(models)
        entry = build_entry(loaded, model.settings, plugins, model.eos_ids, share=share)
        # Before the capture: a plugin may still change the modules.
        plugins.hook.ostro_model_loaded(model=loaded)
        report("warming up", 0, 0)
        if entry.tokens is not None:
            # Only a capture shows whether steps can be captured, which --explain prints.
            make_ready(entry.tokens, loaded, lazily=not (warm or model.settings.explain))
            if warm:
                warm_up(entry.tokens)
        if entry.reader is not None:
            make_pooling_ready(entry.reader, loaded, warm=warm)
        entries[model.settings.name or DEFAULT] = entry
        explain += loaded.explain
    return MultiModelEngine(entries), explain


def open_weights(
    settings: Settings, plugins: PluginManager, report: ProgressCallback | None = None
) -> LoadedModel:
    """Find the model of the settings and load it. Raises OstroError as `open_engine`."""
    path = find(settings, plugins)
    return load_model(path, settings, plugins, report, open_probe=open_probe)


def change_formats(
    loaded: LoadedModel,
    settings: Settings,
    plugins: PluginManager,
    engine: Engine | None,
    message: Requantize,
    report: ProgressCallback,
) -> list[str]:
    """Read a model's weights again in the formats of a message; return the lines of --explain.

    Raises UsageError before any change.
    """
    changed = replace(settings, quant=message.quant, topology=message.topology)
    requantize(loaded, changed, plugins, report, open_probe=open_probe)
    if engine is not None:
        refresh(engine, loaded, changed)
    return loaded.explain


def require_model_class(loaded: LoadedModel, kind: type[M]) -> M:
    """Return the model if it is of the class that its tasks need, else raise PluginError."""
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
    """Build the engines for a model's tasks; its cache gets `share` of the memory for caches."""
    tasks = frozenset(loaded.architecture.tasks if settings.task is None else [settings.task])
    if tasks <= JOB_TASKS:
        pool = build_adapter_pool(loaded, settings, rows=1)
        registry = build_registry(loaded, settings, plugins, pool)
        model = require_model_class(loaded, JobModel)  # type: ignore[type-abstract]
        change = partial(change_formats, loaded, settings, plugins, None)
        jobs = JobEngine(model, registry, pool, Failures(plugins.explain, loaded.device))
        return ModelEntry(jobs=jobs, registry=registry, loaded=loaded, requantize=change)
    require_model_class(loaded, TokenModel if tasks & TOKEN_TASKS else EncoderModel)  # type: ignore[type-abstract]
    engine = build_engine(loaded, settings, plugins, eos_ids, share=share)
    tokens = engine if tasks & TOKEN_TASKS else None
    return ModelEntry(
        tokens=tokens,
        # Both engines may run in one loop: each call of the runner ends before the next begins.
        reader=build_pooling_engine(loaded, engine) if tasks & POOLING_TASKS else None,
        registry=engine.registry,
        loaded=loaded,
        requantize=partial(change_formats, loaded, settings, plugins, tokens),
    )


def build_pooling_engine(loaded: LoadedModel, engine: Engine) -> PoolingEngine:
    """Build a pooling engine that shares the runner of a token engine."""
    # Only causal models have a cache, and only their last token attends to all of the input.
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
