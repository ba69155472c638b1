"""The memory of steps on GPUs: the largest steps run once, before the caches are sized."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from ostro.core.adapters.pool import AdapterPool
from ostro.core.device import format_bytes, return_memory
from ostro.core.engine.engine import Engine
from ostro.core.engine.startup.build import build_engine
from ostro.core.engine.startup.compilation import compile_kernels, uncaptured
from ostro.core.engine.startup.memory import ROWS
from ostro.core.engine.startup.warm_up import probe_token
from ostro.core.errors import InsufficientMemory
from ostro.core.load.model import LoadedModel
from ostro.core.messages.requests import Sampling, TokenRequest
from ostro.core.nn import TokenModel
from ostro.core.plugins.isolation import message_of
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings

RULES = Sampling(temperature=1, top_k=20, top_p=0.95, presence_penalty=1, max_tokens=1)
"""Sampling that allocates the tables of penalties, which stay."""

ANY = 1 << 60
"""Bytes for caches that suffice for all sequences."""


def step_bytes(
    loaded: LoadedModel, settings: Settings, plugins: PluginManager, adapter_pool: AdapterPool
) -> Counter[torch.device]:
    """The most bytes that steps of a model take on each of its GPUs, beside weights and caches.

    A model without GPUs takes none: the CPU has memory for a step beside its default cache.
    """
    gpus = gpus_of(loaded)
    peaks = Counter[torch.device]()
    if not gpus:
        return peaks
    return_memory()
    before = {device: torch.cuda.memory_reserved(device) for device in gpus}
    try:
        with small_engine(loaded, settings, plugins, adapter_pool) as engine:
            compile_kernels(lambda: run_uncaptured(engine), loaded.device)
            return_memory()
            for device in gpus:
                torch.cuda.reset_peak_memory_stats(device)
            run_largest_steps(engine)
            caches = Counter[torch.device]()
            for group in engine.blocks.all:
                caches[group.kind.device] += group.kind.bytes(group.pool.size)
    except torch.OutOfMemoryError as error:
        raise InsufficientMemory(
            f"a step does not fit beside the weights ({message_of(error)}); "
            "load the model with --quant, or with --offload"
        ) from error
    for device in gpus:
        peak = torch.cuda.max_memory_reserved(device) - before[device] - caches[device]
        peaks[device] = max(peak, 0)
        loaded.explain.append(f"memory: steps take up to {format_bytes(peaks[device])} on {device}")
    return_memory()
    return peaks


def gpus_of(loaded: LoadedModel) -> list[torch.device]:
    """The GPUs that compute modules of a model."""
    devices = {loaded.placement.device(module) for module in loaded.model.modules()}
    return [device for device in devices if device.type == "cuda"]


@contextmanager
def small_engine(
    loaded: LoadedModel, settings: Settings, plugins: PluginManager, adapter_pool: AdapterPool
) -> Iterator[Engine]:
    """An engine whose cache holds one step of all rows, as prompts of equal length."""
    context, explain, rows = loaded.context, list(loaded.explain), ROWS[loaded.device.type]
    # As many sequences as may run, each with one row that draws.
    length = min(context, max(rows // settings.max_seqs, 2) + 1)
    loaded.context = length
    small = replace(settings, context=length)
    sizes = Counter({loaded.placement.device(module): ANY for module in loaded.model.modules()})
    try:
        engine = build_engine(loaded, small, plugins, (), adapter_pool=adapter_pool, sizes=sizes)
        try:
            yield engine
        finally:
            engine.close()
    finally:
        loaded.context, loaded.explain = context, explain


def run_uncaptured(engine: Engine) -> None:
    """Run the largest steps, without a capture."""
    with uncaptured(engine):
        run_largest_steps(engine)


@torch.inference_mode()
def run_largest_steps(engine: Engine) -> None:
    """Run a step of all rows, in which all sequences draw, and capture the largest steps."""
    prompt = [probe_token(engine)] * (engine.context - 1)
    count = min(engine.scheduler.max_seqs, engine.scheduler.max_rows // len(prompt))
    if isinstance(engine.runner.model, TokenModel):
        for i in range(count):
            request = TokenRequest(id=f"memory {i}", tokens=prompt, sampling=RULES, cache=False)
            engine.submit(request)
        engine.drain()
        for runner in engine.runners:
            for buckets in runner.buckets:
                buckets.capture_sizes(runner, buckets.sizes[-1:])
    else:
        engine.runner.hidden([prompt] * count)
