"""Measurements of `ostro tune --kernels`: the fastest launch parameters of a model's kernels.

Steps of the model run once each, and record the calls of kernels that look up launch parameters.
Each of these calls then runs with all candidates. The calls of a step are those of several layers,
so that together their weights exceed the cache of the GPU, as in a whole step.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from statistics import median
from time import monotonic
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ostro.core.collection import collection_off
from ostro.core.device import current_device
from ostro.core.engine.engine import Engine
from ostro.core.engine.runner import ModelRunner
from ostro.core.engine.startup.start import open_engine
from ostro.core.errors import UsageError
from ostro.core.messages.commands import ModelSpec
from ostro.core.ops.launch import Key, override_lookup
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import ProgressCallback, Settings
from ostro.entrypoints.bench.steps import operations, prepared_step, run_step, wrapped_methods

STREAMS = (1, 2, 4, 8, 16, 32, 64)
"""Sequences of the decode steps, at DEPTH tokens of context."""
PROMPTS = (16, 32, 64, 128, 256, 512, 1024)
"""Tokens of the prompts."""
DEPTH = 1024
CALLS = 16
"""The most calls of one kernel that are timed together."""
REPLAYS = 9
GAIN = 0.97
"""The part of the default's time that other parameters may take at most to replace it."""
TOLERANCE = 0.02
"""How far results may differ from those of the default, relative to the largest."""


@dataclass(frozen=True)
class Call:
    """A recorded call of a kernel."""

    kernel: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def __call__(self) -> Any:
        return self.kernel(*self.arguments, **self.options)


@dataclass
class Site:
    """Calls that look up the same launch parameters, those of `op` and `key`."""

    op: str
    key: Key
    default: tuple[Any, ...]
    candidates: Callable[[], Iterable[tuple[Any, ...]]]
    calls: list[Call] = field(default_factory=list)

    @property
    def place(self) -> tuple[str, Key]:
        return self.op, self.key

    def run(self, parameters: tuple[Any, ...], calls: Sequence[Call] | None = None) -> list[Any]:
        """The results of the calls, by default of all, with these parameters."""

        def lookup(op: str, key: Key, default: Any, candidates: object) -> Any:
            return parameters if (op, key) == self.place else default

        with override_lookup(lookup):
            return [call() for call in (self.calls if calls is None else calls)]


@dataclass(frozen=True)
class Result:
    """The fastest parameters of a site, and the seconds of all its calls with the default and them.

    tried: candidates that compiled and computed the same as the default.
    """

    site: Site
    chosen: tuple[Any, ...]
    default_seconds: float
    seconds: float
    tried: int

    @property
    def changed(self) -> bool:
        return self.chosen != self.site.default


@dataclass
class KernelTuning:
    """The results of each step by its name. complete: whether all steps were measured."""

    steps: dict[str, list[Result]] = field(default_factory=dict)
    complete: bool = False

    @property
    def chosen(self) -> dict[tuple[str, Key], tuple[Any, ...]]:
        """The parameters by operation and key, also where they are the default."""
        return {each.site.place: each.chosen for step in self.steps.values() for each in step}


class Recorder:
    """Records the calls of a model's kernels that look up launch parameters, by their sites."""

    def __init__(self) -> None:
        self.sites: dict[tuple[str, Key], Site] = {}
        self.call: Call | None = None

    @contextmanager
    def recording(self, model: Module) -> Iterator[None]:
        """Record the calls of the model's kernels in the context."""
        targets = [(op, "kernel") for op in operations(model)]
        with wrapped_methods(targets, self.recorded), override_lookup(self.lookup):
            yield

    def recorded(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """The kernel; what it looks up belongs to the recorded call."""

        def run(*arguments: Any, **options: Any) -> Any:
            outer, self.call = self.call, Call(kernel, arguments, options)
            try:
                return self.call()
            finally:
                self.call = outer

        return run

    def lookup(
        self,
        op: str,
        key: Key,
        default: tuple[Any, ...],
        candidates: Callable[[], Iterable[tuple[Any, ...]]],
    ) -> tuple[Any, ...]:
        """See `launch_parameters`; returns the default."""
        site = self.sites.setdefault((op, key), Site(op, key, default, candidates))
        if self.call is not None and len(site.calls) < CALLS:
            site.calls.append(self.call)
        return default


@contextmanager
def opened(
    settings: Settings, plugins: PluginManager, progress: ProgressCallback
) -> Iterator[Engine]:
    """The engine of a model on one GPU; the context closes it.

    Raises UsageError for a model that does not generate text, for one whose layers are split, and
    for deterministic kernels.
    """
    engine, _ = open_engine([ModelSpec(settings)], plugins, progress, warm=False)
    with closing(engine):
        tokens = engine.first.tokens
        if tokens is None:
            raise UsageError("tune supports models that generate text only")
        if tokens.runner.segments is not None:
            raise UsageError("--kernels: the layers of the model are on several devices")
        if settings.deterministic:
            raise UsageError("--kernels: kernels with --deterministic have fixed launch parameters")
        yield tokens


class KernelTuner:
    """Measures the kernels of an engine's model. `found` has the results, also when interrupted."""

    def __init__(
        self,
        engine: Engine,
        *,
        seconds: float,
        progress: ProgressCallback,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """seconds: time after which no measurement begins."""
        self.engine, self.progress, self.clock = engine, progress, clock
        self.end = clock() + seconds
        self.found = KernelTuning()

    @property
    def runner(self) -> ModelRunner:
        return self.engine.runner

    @property
    def in_time(self) -> bool:
        return self.clock() < self.end

    @torch.inference_mode()
    def run(self) -> KernelTuning:
        """Measure decode steps, then prompts."""
        steps = list(self.steps())
        with current_device(self.runner.device):
            for done, (name, streams, depth, rows) in enumerate(steps):
                if not self.in_time:
                    return self.found
                self.progress(f"tuning: {name}", done, len(steps))
                # With fewer tokens in the cache if it has no room for all sequences.
                depths = dict.fromkeys((depth, depth // 4, depth // 16))
                records = (self.record(streams, before, rows) for before in depths)
                self.measure(name, next(filter(None, records), {}))
        self.found.complete = self.in_time
        return self.found

    def steps(self) -> Iterator[tuple[str, int, int, int]]:
        """The name of each step, its sequences, and for each the tokens before and the rows."""
        scheduler, context = self.engine.scheduler, self.engine.context
        for streams in STREAMS:
            if streams <= scheduler.max_seqs:
                yield f"decode, batch of {streams}", streams, min(DEPTH, context - 1), 1
        for tokens in PROMPTS:
            if tokens <= min(scheduler.max_rows, context):
                yield f"prompt of {tokens}", 1, 0, tokens

    def record(self, streams: int, depth: int, rows: int) -> dict[tuple[str, Key], Site]:
        """The sites of a step, see `prepared_step`; none if the cache has no room for it."""
        runner, recorder = self.runner, Recorder()
        with prepared_step(self.engine, streams, depth, rows) as chunks:
            if chunks:
                with recorder.recording(runner.model):
                    run_step(runner, chunks)
        return recorder.sites

    def measure(self, name: str, sites: dict[tuple[str, Key], Site]) -> None:
        """Choose the parameters of those sites that no step before had."""
        known = self.found.chosen
        new = [site for place, site in sites.items() if place not in known and site.calls]
        compiled = compile_candidates(new, self.runner.device)
        results = self.found.steps.setdefault(name, [])
        for site in new:
            if self.in_time:
                results.append(self.fastest(site, compiled[site.place]))

    def fastest(self, site: Site, candidates: Sequence[tuple[Any, ...]]) -> Result:
        """The fastest of these candidates and the default."""
        expected = site.run(site.default, site.calls[:1])
        usual = self.seconds(site, site.default)
        best, least, tried = site.default, usual * GAIN, 0
        for parameters in candidates:
            if not self.in_time:
                break
            try:
                if not all(map(agree, site.run(parameters, site.calls[:1]), expected)):
                    continue
                seconds = self.seconds(site, parameters)
            except RuntimeError:  # a launch that the GPU refuses
                continue
            tried += 1
            if seconds < least:
                best, least = parameters, seconds
        # Once more, beside each other: the clock of the GPU changes with its load.
        usual = self.seconds(site, site.default)
        least = usual if best == site.default else self.seconds(site, best)
        if least > usual * GAIN:
            best, least = site.default, usual
        return Result(site, best, usual, least, tried)

    def seconds(self, site: Site, parameters: tuple[Any, ...]) -> float:
        return graph_seconds(lambda: site.run(parameters))


def compile_candidates(
    sites: Sequence[Site], device: torch.device
) -> dict[tuple[str, Key], list[tuple[Any, ...]]]:
    """The candidates of each site that compile and run, which threads try side by side."""

    @torch.inference_mode()
    def compiles(parameters: tuple[Any, ...]) -> list[Site]:
        # In one thread: most of these sites launch the same compiled kernel.
        done = []
        with current_device(device):
            for site in wanted[parameters]:
                try:
                    site.run(parameters, site.calls[:1])
                except Exception:  # Triton raises errors of many types
                    continue
                done.append(site)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        return done

    wanted: dict[tuple[Any, ...], list[Site]] = {}
    for site in sites:
        for parameters in dict.fromkeys(site.candidates()):
            if parameters != site.default:
                wanted.setdefault(parameters, []).append(site)
    compiled: dict[tuple[str, Key], list[tuple[Any, ...]]] = {site.place: [] for site in sites}
    # Triton's interpreter, on the CPU, runs in one thread at a time.
    threads = min(8, os.cpu_count() or 1) if device.type == "cuda" else 1
    pool = ThreadPoolExecutor(threads)
    try:
        with collection_off():
            for parameters, done in zip(wanted, pool.map(compiles, list(wanted)), strict=True):
                for site in done:
                    compiled[site.place].append(parameters)
    finally:
        pool.shutdown(cancel_futures=True)  # Ctrl-C waits for those that have begun
    return compiled


def agree(result: Any, expected: Any) -> bool:
    """Return whether two results of a kernel, tensors or tuples of them, are nearly equal."""
    if isinstance(expected, tuple):
        return all(map(agree, result, expected))
    if not isinstance(expected, Tensor):
        return bool(result == expected)
    expected, result = expected.float(), result.float()
    most = expected.abs().amax() if expected.numel() else expected.new_zeros(())
    return bool(((result - expected).abs() <= TOLERANCE * most).all())


def graph_seconds(run: Callable[[], object]) -> float:
    """The median seconds of a function's kernels, captured in a CUDA graph and replayed."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()  # what it allocates or compiles at first is not captured
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        run()
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        graph.replay()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) / 1e3)
    return median(times)
