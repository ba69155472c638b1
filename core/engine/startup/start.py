"""Starts the engine of one or more models from settings, in the process that owns the device."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch

from ostro.core.adapters.pool import AdapterPool
from ostro.core.device import free_bytes, return_memory
from ostro.core.engine.engine import Engine
from ostro.core.engine.jobs import JobEngine
from ostro.core.engine.models.model_engines import ModelEngines
from ostro.core.engine.models.model_loader import BetweenSteps
from ostro.core.engine.models.multi_model import MultiModelEngine
from ostro.core.engine.pooling import PoolingEngine
from ostro.core.engine.proposers.build_speculation import draft_model_settings, no_speculator
from ostro.core.engine.startup.adapters import build_registry
from ostro.core.engine.startup.build import build_engine, refresh, reserve_adapters
from ostro.core.engine.startup.caches import cache_needs
from ostro.core.engine.startup.calibration import open_probe
from ostro.core.engine.startup.compilation import compile_entry, compile_kernels
from ostro.core.engine.startup.memory import cache_budgets, check_weights
from ostro.core.engine.startup.profile import small_engine, step_bytes
from ostro.core.engine.startup.warm_up import make_pooling_ready, make_ready, probe_prompt, warm_up
from ostro.core.errors import ModelNotFound, PluginError
from ostro.core.failure import Failures
from ostro.core.load.describe import ModelOutline
from ostro.core.load.model import LoadedModel, load_model, requantize
from ostro.core.load.open import find
from ostro.core.load.pooling import read_pooling
from ostro.core.messages.commands import ModelSpec
from ostro.core.messages.requests import DEFAULT_MODEL
from ostro.core.nn import AssistantModel, EncoderModel, JobModel, Model, TokenModel
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import ProgressCallback, Settings
from ostro.core.threads import THREADS

log = logging.getLogger(__name__)

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
    if models:
        THREADS.set(models[0].settings.threads)
    # All weights before the first cache, whose size is a part of the memory that is left.
    loaded_models = [open_weights(model.settings, plugins, report) for model in models]
    entries, explain = dict[str, ModelEngines](), list[str]()
    built = build_entries(loaded_models, models, plugins, free_bytes)
    for model, entry, loaded in zip(models, built, loaded_models, strict=True):
        report("warming up", 0, 0)
        # Only a capture shows whether steps can be captured, which --explain prints.
        make_entry_ready(entry, lazily=not (warm or model.settings.explain), warm=warm)
        entries[model.settings.name or DEFAULT_MODEL] = entry
        explain += loaded.explain
    engine = MultiModelEngine(entries, lambda *args: load_entry(engine, plugins, *args))
    return engine, explain


def load_entry(
    engine: MultiModelEngine,
    plugins: PluginManager,
    spec: ModelSpec,
    report: ProgressCallback,
    between_steps: BetweenSteps,
) -> ModelEngines:
    """Load one more model in a thread of an engine, and warm it up.

    Raises OstroError, such as InsufficientMemory before the weights are read.
    """

    def check(found: ModelOutline) -> None:
        # Layers on several devices are placed by the memory of each.
        if spec.settings.placement is None:
            free = free_beside(engine, found.device)
            check_weights(sum(found.weigh().values()), free, found.device)

    loaded = open_weights(spec.settings, plugins, report, check=check)

    def build() -> ModelEngines:
        [entry] = build_entries([loaded], [spec], plugins, partial(free_beside, engine))
        report("warming up", 0, 0)
        make_entry_ready(entry)
        return entry

    try:
        # Steps of other models would change the memory that is measured on a GPU.
        return between_steps(build) if loaded.device.type == "cuda" else build()
    except BaseException:
        loaded.close()
        raise


def free_beside(engine: MultiModelEngine, device: torch.device) -> int:
    """The free bytes of a device, without the memory that caches of an engine may still use."""
    unwritten = 0
    # On the CPU the system provides the memory of a block at its first use.
    if device.type == "cpu":
        unwritten = sum(entry.unwritten_bytes for entry in list(engine.entries.values()))
    return max(free_bytes(device) - unwritten, 0)


def build_entries(
    loaded_models: Sequence[LoadedModel],
    models: Sequence[ModelSpec],
    plugins: PluginManager,
    free: Callable[[torch.device], int],
) -> list[ModelEngines]:
    """Build the engines of models within the free bytes of devices; see `cache_sizes`.

    What the largest steps need on GPUs stays free.
    """
    pools = [
        reserve_adapters(
            loaded, model.settings, 1 if is_job_model(loaded, model.settings) else None
        )
        for loaded, model in zip(loaded_models, models, strict=True)
    ]
    steps = Counter[torch.device]()
    for loaded, model, pool in zip(loaded_models, models, pools, strict=True):
        if not is_job_model(loaded, model.settings):
            steps += step_bytes(loaded, model.settings, plugins, pool)
    sizes = cache_sizes(
        loaded_models, models, plugins, lambda device: max(free(device) - steps[device], 0)
    )
    entries = [
        build_entry(*each, plugins)
        for each in zip(loaded_models, models, pools, sizes, strict=True)
    ]
    for loaded in loaded_models:
        # Before the capture: a plugin may still change the modules.
        plugins.hook.ostro_model_loaded(model=loaded)
    return entries


def cache_sizes(
    loaded_models: Sequence[LoadedModel],
    models: Sequence[ModelSpec],
    plugins: PluginManager,
    free: Callable[[torch.device], int],
) -> list[dict[torch.device, int]]:
    """Bytes for the caches of each model by device. Raises InsufficientMemory."""
    needs = [
        cache_needs(loaded, model.settings, plugins)
        for loaded, model in zip(loaded_models, models, strict=True)
    ]
    sizes: list[dict[torch.device, int]] = [{} for _ in models]
    for device in dict.fromkeys(device for each in needs for device in each):
        using = [i for i, each in enumerate(needs) if device in each]
        wanted = [(models[i].settings, needs[i][device]) for i in using]
        for i, size in zip(using, cache_budgets(wanted, device, free(device)), strict=True):
            sizes[i][device] = size
    return sizes


def make_entry_ready(entry: ModelEngines, *, lazily: bool = False, warm: bool = True) -> None:
    """Check the outputs of a model, capture its decode steps and compile its kernels."""
    loaded = entry.loaded
    assert loaded is not None, "`build_entry` sets it"
    compile_entry(entry, warm=warm)
    if entry.tokens is not None:
        make_ready(entry.tokens, loaded, lazily=lazily)
        if warm:
            warm_up(entry.tokens)
    if entry.reader is not None:
        make_pooling_ready(entry.reader, loaded, warm=warm)


def open_weights(
    settings: Settings,
    plugins: PluginManager,
    report: ProgressCallback | None = None,
    check: Callable[[ModelOutline], None] | None = None,
) -> LoadedModel:
    """Find the model of the settings and load it, with its draft model; `check` may refuse either
    before its weights are read.

    In the place of a float16 that "auto" chose and that is too narrow, the dtype is float32. Raises
    OstroError as `open_engine`.
    """
    # First: its name may be wrong, and the check of the model must know the memory that it takes.
    draft = open_draft_model(settings, plugins, report, check)
    try:
        loaded = open_own_weights(settings, plugins, report, check)
    except BaseException:
        if draft is not None:
            draft.close()
        raise
    loaded.draft = draft
    if (
        draft is not None
        and isinstance(draft.model, AssistantModel)
        and draft.dtype != loaded.dtype
    ):
        # It computes with hidden states and K/V of the model.
        draft.close()
        dtype = str(loaded.dtype).removeprefix("torch.")
        loaded.draft = open_draft_model(settings, plugins, report, check, dtype)
    return loaded


def open_draft_model(
    settings: Settings,
    plugins: PluginManager,
    report: ProgressCallback | None,
    check: Callable[[ModelOutline], None] | None,
    dtype: str = "auto",
) -> LoadedModel | None:
    """The draft model of --speculate, if it names one. Raises UsageError for an unknown name."""
    draft = draft_model_settings(settings, plugins)
    if draft is None:
        return None
    try:
        return open_own_weights(replace(draft, dtype=dtype), plugins, report, check)
    except ModelNotFound as error:
        raise no_speculator(draft.reference or "", plugins, error) from error


def open_own_weights(
    settings: Settings,
    plugins: PluginManager,
    report: ProgressCallback | None,
    check: Callable[[ModelOutline], None] | None,
) -> LoadedModel:
    """`open_weights` without the draft model."""
    path = find(settings, plugins)
    load = partial(load_model, open_probe=open_probe, check=check)
    loaded = load(path, settings, plugins, report)
    if settings.dtype != "auto" or not overflows(loaded, settings, plugins):
        return loaded
    log.warning(
        "%s: its outputs overflow in float16, so it is computed in float32; "
        "--dtype chooses another dtype",
        path.name,
    )
    loaded.container.close()
    del loaded
    return_memory()
    loaded = load(path, replace(settings, dtype="float32"), plugins, report)
    loaded.explain.append("dtype: float32, since outputs overflow in float16")
    return loaded


def overflows(loaded: LoadedModel, settings: Settings, plugins: PluginManager) -> bool:
    """Whether the outputs of a model contain NaN or Inf in float16; False in another dtype.

    Job models have no outputs to check without a job, assistants none without their target.
    """
    if loaded.dtype != torch.float16 or is_job_model(loaded, settings):
        return False
    pool = reserve_adapters(loaded, settings)
    with small_engine(
        loaded, replace(settings, max_seqs=1, speculate=None), plugins, pool
    ) as engine:
        prompt = probe_prompt(engine, loaded)
        if tasks_of(loaded, settings) & TOKEN_TASKS:
            compile_kernels(lambda: engine.runner.logits(prompt), loaded.device)
            return not engine.runner.logits(prompt).isfinite().all()
        compile_kernels(lambda: engine.runner.hidden([prompt]), loaded.device)
        return not engine.runner.hidden([prompt])[0].isfinite().all()


def change_formats(
    entry: ModelEngines,
    plugins: PluginManager,
    quant: str | None,
    topology: str | None,
    report: ProgressCallback,
) -> list[str]:
    """Read a model's weights again, in place, in other formats; return the lines of --explain.

    No request may run meanwhile. Raises UsageError before any change.
    """
    loaded, spec = entry.loaded, entry.spec
    assert loaded is not None and spec is not None, "`build_entry` sets them"
    changed = replace(spec.settings, quant=quant, topology=topology)
    requantize(loaded, changed, plugins, report, open_probe=open_probe)
    compile_entry(entry, warm=False)
    if entry.tokens is not None:
        refresh(entry.tokens, loaded, changed)
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


def tasks_of(loaded: LoadedModel, settings: Settings) -> frozenset[str]:
    """The tasks that a model serves."""
    task = settings.task
    return frozenset(loaded.architecture.tasks if task is None else [task])


def is_job_model(loaded: LoadedModel, settings: Settings) -> bool:
    """Whether a model serves jobs only."""
    return tasks_of(loaded, settings) <= JOB_TASKS


def build_entry(
    loaded: LoadedModel,
    spec: ModelSpec,
    pool: AdapterPool,
    sizes: Mapping[torch.device, int] | None,
    plugins: PluginManager,
) -> ModelEngines:
    """Build the engines for a model's tasks; `sizes` as in `build_engine`."""
    settings, tasks = spec.settings, tasks_of(loaded, spec.settings)
    jobs: JobEngine | None = None
    if tasks <= JOB_TASKS:
        registry = build_registry(loaded, settings, plugins, pool)
        model = require_model_class(loaded, JobModel)  # type: ignore[type-abstract]
        failures = Failures(plugins.explain, loaded.device)
        jobs = JobEngine(model, registry, pool, failures, loaded.device)
        return ModelEngines(jobs=jobs, registry=registry, loaded=loaded, spec=spec)
    require_model_class(loaded, TokenModel if tasks & TOKEN_TASKS else EncoderModel)  # type: ignore[type-abstract]
    engine = build_engine(loaded, settings, plugins, spec.eos_ids, adapter_pool=pool, sizes=sizes)
    if isinstance(loaded.model, JobModel):
        jobs = JobEngine(loaded.model, engine.registry, pool, engine.failures, loaded.device)
    return ModelEngines(
        tokens=engine if tasks & TOKEN_TASKS else None,
        # Both engines may run in one loop: each call of the runner ends before the next begins.
        reader=build_pooling_engine(loaded, engine) if tasks & POOLING_TASKS else None,
        jobs=jobs,
        registry=engine.registry,
        loaded=loaded,
        spec=spec,
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
