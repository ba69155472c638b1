"""Compiles the Triton kernels of a model's first steps, in threads, before the steps run.

Without a dry run, each step would compile those kernels that no step before had, one after the
other. A dry run of the steps launches none and compiles all side by side.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from ostro.core.engine.draft_length import StepCosts
from ostro.core.engine.engine import Engine
from ostro.core.engine.graphs import DryGraphs
from ostro.core.engine.models.model_engines import ModelEngines
from ostro.core.engine.pooling import PoolingEngine
from ostro.core.engine.startup.warm_up import DRAFT_PROBE, probe_prompt, warm_up, warm_up_vectors
from ostro.core.load.model import LoadedModel
from ostro.core.plugins.isolation import reason

log = logging.getLogger(__name__)


def compile_kernels(steps: Callable[[], object], device: torch.device) -> bool:
    """Compile the Triton kernels of steps for a GPU by a dry run, without results.

    Returns whether any was not in Triton's cache of files. If the steps raise an error, the other
    kernels are compiled at their first launch.
    """
    if device.type != "cuda":
        return False
    try:
        from ostro.core.engine.startup.kernel_compiler import compile_launched
    except ImportError:  # without Triton
        return False
    try:
        return compile_launched(steps) > 0
    except Exception as error:
        # Steps that compute with zeros may fail where others do not.
        log.warning(
            "a dry run failed, so that kernels are compiled one after the other: %s", reason(error)
        )
        return False


def compile_entry(entry: ModelEngines, *, warm: bool) -> None:
    """Compile the kernels of the steps that `start.make_entry_ready` runs."""
    loaded = entry.loaded
    assert loaded is not None, "`build_entry` sets it"
    # A small step shows whether Triton's cache has the kernels. If it has, a dry run of all steps
    # would only make the start longer.
    if (tokens := entry.tokens) is not None and compile_kernels(
        partial(run_smallest, tokens, loaded), loaded.device
    ):
        compile_kernels(partial(run_all, tokens, warm), loaded.device)
    if (reader := entry.reader) is not None and compile_kernels(
        partial(read_all, reader, False), loaded.device
    ):
        compile_kernels(partial(read_all, reader, warm), loaded.device)


@torch.inference_mode()
def run_smallest(engine: Engine, loaded: LoadedModel) -> None:
    """Run the prompts that check the outputs, and the smallest step that is captured."""
    with uncaptured(engine):
        engine.runner.logits(probe_prompt(engine, loaded))
        if engine.draft_runner is not None:
            engine.draft_runner.logits(DRAFT_PROBE)
        for runner in engine.runners:
            runner.decode_buckets.capture_sizes(runner, runner.decode_buckets.sizes[:1])


@torch.inference_mode()
def run_all(engine: Engine, warm: bool) -> None:
    """Run all steps that are captured, and with `warm` those of the warm-up."""
    with uncaptured(engine):
        for runner in engine.runners:
            runner.capture()
        if warm:
            warm_up(engine)


def read_all(reader: PoolingEngine, warm: bool) -> None:
    """Compute the vector of a short input, and with `warm` those of the warm-up."""
    for _ in warm_up_vectors(reader, warm=warm):
        pass


@contextmanager
def uncaptured(engine: Engine) -> Iterator[None]:
    """Run steps in buckets that are not captured.

    The context leaves no bucket, and no durations of steps.
    """
    graphs = [runner.graphs for runner in engine.runners]
    for runner in engine.runners:
        runner.graphs = DryGraphs()
    try:
        yield
    finally:
        for runner, before in zip(engine.runners, graphs, strict=True):
            runner.graphs = before
            runner.close()
        if (speculation := engine.scheduler.speculation) is not None:
            speculation.costs = StepCosts()
