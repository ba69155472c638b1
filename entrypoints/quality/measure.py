"""Measurement of quality: runs the reference over a text, then each variant, one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil, prod
from pathlib import Path

import torch
from torch import Tensor

from ostro.core.engine.engine import Engine
from ostro.core.engine.startup.build import ready_engine
from ostro.core.engine.startup.memory import BLOCK, ROWS
from ostro.core.engine.startup.start import open_weights
from ostro.core.errors import UsageError
from ostro.core.load.model import LoadedModel
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import ProgressCallback, Settings
from ostro.core.step import Step
from ostro.core.threads import THREADS
from ostro.entrypoints.open import name_of, open_tokenizer
from ostro.entrypoints.quality.divergence import (
    Difference,
    ReferenceLogprobs,
    compare,
    compress,
    join,
)
from ostro.entrypoints.quality.figures import (
    LayerError,
    Quality,
    QualityReport,
    Weights,
    mean,
    perplexity,
    share,
)
from ostro.entrypoints.quality.layers import Samples, layer_errors, record_samples, weights
from ostro.entrypoints.quality.text import EvaluationText, Window, batches, windows

WINDOW = 512
"""Tokens of a window if --context is not given."""

SEQUENCES = 16
"""Limit on the windows of one step."""

SLICE = 128
"""Positions whose logits are computed at a time, to bound memory."""


@dataclass(frozen=True)
class OpenModel:
    """A loaded model whose steps have up to `rows` tokens."""

    loaded: LoadedModel
    engine: Engine
    rows: int

    def read(self, batch: Sequence[Window]) -> Iterator[tuple[Tensor, Tensor]]:
        """Run the windows in one step. Yield logits [t, V] float32 of evaluated positions and their
        next tokens [t], `SLICE` positions at a time.
        """
        hidden, step = self.engine.runner.hidden([window.ids for window in batch])
        indices, start = list[int](), 0
        for window in batch:
            indices += range(start + window.first - 1, start + len(window.ids) - 1)
            start += len(window.ids)
        following = torch.tensor([id for window in batch for id in window.counted])
        for rows, ids in zip(
            torch.tensor(indices).split(SLICE), following.split(SLICE), strict=True
        ):
            yield self.logits(hidden, replace(step, logits_indices=rows.to(hidden.device))), ids

    @torch.inference_mode()
    def logits(self, hidden: Tensor, step: Step) -> Tensor:
        return self.engine.runner.model.logits(hidden, step).float().cpu()

    @property
    def weights(self) -> Weights:
        storages = {
            id(s): s
            for module in weights(self.loaded.model).values()
            for s in module.active_storages
        }
        nbytes = sum(storage.nbytes for storage in storages.values())
        count = sum(prod(storage.shape) for storage in storages.values())
        formats = tuple(sorted({storage.format for storage in storages.values()}))
        return Weights(nbytes=nbytes, bits=8 * nbytes / count, formats=formats)


@dataclass(frozen=True)
class ReferenceRun:
    """Results of the reference: its windows by step, log-probabilities and samples of inputs."""

    steps: list[list[Window]]
    distributions: list[ReferenceLogprobs]
    samples: Samples
    vocab: int

    @property
    def windows(self) -> list[Window]:
        return [window for step in self.steps for window in step]

    @property
    def longest(self) -> int:
        return max(len(window.ids) for window in self.windows)


@contextmanager
def open_model(
    settings: Settings,
    plugins: PluginManager,
    window: int,
    progress: ProgressCallback | None = None,
) -> Iterator[OpenModel]:
    """Load a model for windows of a length. Raises UsageError if it does not generate text."""
    loaded = open_weights(settings, plugins, progress)
    if "text" not in loaded.architecture.tasks:
        raise UsageError(f"{name_of(settings)}: quality supports models that generate text only")
    loaded.context = min(window, loaded.context)
    kind = loaded.device.type
    rows = max(ROWS[kind], loaded.context)
    blocks = ceil(rows / BLOCK[kind]) + SEQUENCES
    alone = replace(settings, context=loaded.context, max_seqs=1)
    with ready_engine(loaded, alone, plugins, rows=rows, blocks=blocks) as engine:
        yield OpenModel(loaded, engine, rows)


def measure(
    reference: Settings,
    variants: Mapping[str, Settings],
    text: EvaluationText,
    plugins: PluginManager,
    *,
    tokens: int | None = None,
    progress: ProgressCallback = lambda *step: None,
) -> QualityReport:
    """Compare variants, by name, with a reference.

    reference.context: length of windows. tokens: limit on the tokens of the text. Ctrl-C after the
    first step of a variant ends the measurement; the report contains what was measured. Raises an
    OstroError if a model cannot be loaded or compared.
    """
    THREADS.set(reference.threads)
    length = reference.context or WINDOW
    with open_model(reference, plugins, length, prefixed(progress, "reference")) as model:
        path = Path(reference.tokenizer) if reference.tokenizer else model.loaded.path
        tokenizer = open_tokenizer(path, plugins)
        cuts = windows(text, tokenizer, model.loaded.context, tokens)
        known = run_reference(model, cuts, prefixed(progress, "reference"))
        weighed, dtype = model.weights, model.loaded.dtype
    del model
    qualities = list(compare_variants(variants, known, plugins, length, progress))
    return QualityReport(
        model=name_of(next(iter(variants.values()), reference)),
        reference=name_of(reference),
        text=text.name,
        windows=len(known.windows),
        window=known.longest,
        positions=sum(len(each.following) for each in known.distributions),
        dtype=str(dtype).removeprefix("torch."),
        outcomes=known.distributions[0].logprobs.shape[-1],
        weights=weighed,
        perplexity=perplexity(torch.cat([each.losses for each in known.distributions])),
        variants=tuple(qualities),
        limit=tokens,
        interrupted=len(qualities) < len(variants) or qualities[-1].interrupted,
    )


def prefixed(progress: ProgressCallback, name: str) -> ProgressCallback:
    """A callback that adds the name of a model to the stage."""
    return lambda stage, done, total: progress(f"{name}: {stage}", done, total)


def run_reference(model: OpenModel, cuts: list[Window], progress: ProgressCallback) -> ReferenceRun:
    """Run the reference over all windows."""
    steps = list(batches(cuts, model.rows, SEQUENCES))
    distributions = []
    with record_samples(model.loaded) as samples:
        for i, batch in enumerate(steps):
            progress("evaluating", i, len(steps))
            distributions += [
                compress(logits, following) for logits, following in model.read(batch)
            ]
    return ReferenceRun(steps, distributions, samples, model.engine.vocab)


def compare_variants(
    variants: Mapping[str, Settings],
    known: ReferenceRun,
    plugins: PluginManager,
    length: int,
    progress: ProgressCallback,
) -> Iterator[Quality]:
    """Compare variants one at a time, until Ctrl-C. Raises KeyboardInterrupt without a result."""
    count = 0
    for name, settings in variants.items():
        report = prefixed(progress, name)
        try:
            with open_model(settings, plugins, length, report) as model:
                quality = compare_variant(name, model, known, report)
            del model
        except KeyboardInterrupt:
            if not count:
                raise
            return
        yield quality
        if quality.interrupted:
            return
        count += 1


def compare_variant(
    name: str, model: OpenModel, known: ReferenceRun, progress: ProgressCallback
) -> Quality:
    """Run a variant over the same windows. Raises UsageError if they do not fit the variant.

    Ctrl-C after the first step ends the comparison: the result covers the steps before it.
    """
    if model.engine.vocab != known.vocab:
        raise UsageError(
            f"{name} has a vocabulary of {model.engine.vocab}, its reference one of {known.vocab}; "
            "set --reference to the float model of the same vocabulary"
        )
    if model.engine.context < known.longest:
        raise UsageError(
            f"{name} has a context of {model.engine.context} tokens, the longest window has "
            f"{known.longest}; set --context {model.engine.context}"
        )
    distributions, parts = iter(known.distributions), list[Difference]()
    layers, interrupted = tuple[LayerError, ...](), False
    try:
        for i, batch in enumerate(known.steps):
            progress("evaluating", i, len(known.steps))
            parts += [compare(next(distributions), logits) for logits, _ in model.read(batch)]
        progress("comparing weights", 0, 0)
        layers = layer_errors(known.samples, model.loaded)
    except KeyboardInterrupt:
        if not parts:
            raise
        interrupted = True
    found = join(parts)
    return Quality(
        name=name,
        positions=len(found.kl),
        interrupted=interrupted,
        weights=model.weights,
        kl=mean(found.kl),
        kl_p99=float(found.kl.quantile(0.99)),
        top1=share(found.same),
        perplexity=perplexity(found.losses),
        ratio=perplexity(found.gains),
        layers=layers,
    )
