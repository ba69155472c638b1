"""Measurements of `ostro tune`: which options of a model give the most tokens per second.

The options are chosen one after the other: format, KV cache and threads by the speed of one stream,
then the number of sequences by the speed of all streams together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from time import monotonic

from ostro.core.cpu import core_count
from ostro.core.engine.models.model_engines import ModelEngines
from ostro.core.engine.startup.start import open_engine
from ostro.core.errors import OstroError, UsageError
from ostro.core.messages.commands import ModelSpec
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import ProgressCallback, Settings
from ostro.core.threads import THREADS
from ostro.entrypoints.bench.local import measure

PROMPT, TOKENS = 64, 24
"""Lengths of the prompts and of the generated texts."""
GAIN = 1.1
"""Factor in total speed that more sequences must bring."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A measurement of `streams` concurrent requests. Rates are in tokens per second."""

    settings: Settings
    streams: int
    prefill: float
    decode: float
    total: float


@dataclass(kw_only=True)
class Tuning:
    """What has been measured so far. skipped: candidates that failed to load, and why.

    complete: whether every candidate was measured.
    """

    settings: Settings
    trials: list[Trial] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    complete: bool = False

    @property
    def fastest(self) -> Settings:
        """The settings of the fastest stream. Raises UsageError without a measurement."""
        alone = [trial for trial in self.trials if trial.streams == 1]
        if not alone:
            raise UsageError(f"nothing was measured: {'; '.join(self.skipped) or 'no time'}")
        return max(alone, key=lambda trial: trial.decode).settings

    @property
    def best(self) -> Settings:
        """The fastest settings, with the largest number of sequences that was worth it.

        Without a measurement of several streams, the number of sequences is the given one.
        """
        fastest = self.fastest
        chosen, *more = [trial for trial in self.trials if trial.settings == fastest]
        if not more:
            return fastest
        for trial in more:
            if trial.total < GAIN * chosen.total:
                break
            chosen = trial
        return replace(fastest, max_seqs=chosen.streams)


class Tuner:
    """Measures candidates until a time limit. `found` has the results, also when interrupted."""

    def __init__(
        self,
        settings: Settings,
        plugins: PluginManager,
        *,
        seconds: float,
        progress: ProgressCallback,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """seconds: time after which no model is loaded and no measurement begins."""
        self.plugins, self.progress, self.clock = plugins, progress, clock
        self.end = clock() + seconds
        self.found = Tuning(settings=settings)

    def run(
        self, formats: Sequence[str | None], kv_dtypes: Sequence[str], streams: Sequence[int]
    ) -> Tuning:
        """Measure the candidates.

        formats: None is that of the checkpoint. streams: numbers of concurrent requests, ascending,
        which are measured with the fastest of the other candidates.
        """
        settings = self.found.settings
        for quant, kv_dtype in product(formats, kv_dtypes):
            self.measure(replace(settings, quant=quant, kv_dtype=kv_dtype))
        if streams and self.found.trials:
            self.measure(self.found.fastest, streams)
        self.found.complete = self.clock() < self.end
        return self.found

    def measure(self, settings: Settings, streams: Sequence[int] = ()) -> None:
        """Measure these numbers of streams, or one stream with each number of threads."""
        with self.opened(settings, max(streams, default=1)) as entry:
            if entry is None:
                return
            threads = [settings.threads] if streams else thread_counts(settings, entry)
            for number, count in product(threads, streams or [1]):
                if self.clock() < self.end:
                    self.measure_one(entry, replace(settings, threads=number), count)

    def measure_one(self, entry: ModelEngines, settings: Settings, streams: int) -> None:
        """Add a trial."""
        self.progress(f"{describe(settings)}, {streams} streams", 0, 0)
        assert entry.tokens is not None
        THREADS.set(settings.threads)
        row = measure(entry.tokens, prompt=PROMPT, tokens=TOKENS, runs=1, concurrency=streams)
        trial = Trial(
            settings=settings,
            streams=streams,
            prefill=row.prefill,
            decode=row.decode,
            total=row.total,
        )
        self.found.trials.append(trial)

    @contextmanager
    def opened(self, settings: Settings, streams: int) -> Iterator[ModelEngines | None]:
        """Load the model for a number of streams; None after the time limit or an error.

        Raises UsageError for a model that does not generate text.
        """
        if self.clock() >= self.end:
            yield None
            return
        self.progress(f"loading {describe(settings)}", 0, 0)
        spec = ModelSpec(replace(settings, max_seqs=streams))
        try:
            engine, _ = open_engine([spec], self.plugins, self.progress)
        except OstroError as error:
            self.found.skipped.append(f"{describe(settings)}: {error}")
            yield None
            return
        with closing(engine):
            if engine.first.tokens is None:
                raise UsageError("tune supports models that generate text only")
            yield engine.first


def thread_counts(settings: Settings, entry: ModelEngines) -> list[int | None]:
    """Return the numbers of threads to measure: the given one; on a CPU up to that of the cores."""
    if settings.threads is not None or entry.loaded is None or entry.loaded.device.type != "cpu":
        return [settings.threads]
    cores = core_count()
    return [*sorted({1, max(1, cores // 2), cores})]


def describe(settings: Settings) -> str:
    """Return the options of a candidate, for tables and messages."""
    threads = "" if settings.threads is None else f", {settings.threads} threads"
    return f"{settings.quant or 'stored'}, KV cache {settings.kv_dtype}{threads}"
