"""Measure: the reference reads the text once, then each variant does, one model at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil, prod
from pathlib import Path

import torch
from torch import Tensor

from ostro.core.engine.build import ROWS, ready_engine, set_threads
from ostro.core.engine.engine import Engine
from ostro.core.engine.memory import BLOCK
from ostro.core.engine.start import open_weights
from ostro.core.errors import UsageError
from ostro.core.load.model import LoadedModel
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Settings
from ostro.core.step import Step
from ostro.entrypoints.open import name_of, open_tokenizer
from ostro.entrypoints.quality.figures import (
    Quality,
    QualityReport,
    Weights,
    mean,
    perplexity,
    share,
)
from ostro.entrypoints.quality.layers import Samples, errors, watch, weights
from ostro.entrypoints.quality.text import EvaluationText, Window, batches, windows
from ostro.entrypoints.quality.truth import Truth, differ, join, keep

WINDOW = 512
"""Tokens of a window where no context is asked for."""

SEQUENCES = 16
"""Windows that are read in one step, at most."""

SLICE = 128
"""Positions whose logits there are at a time."""

Told = Callable[[str, int, int], None]
"""Told (who, steps done, steps in all) as a model reads."""


@dataclass(frozen=True)
class Opened:
    """A model that reads up to `rows` tokens at once."""

    loaded: LoadedModel
    engine: Engine
    rows: int

    def read(self, batch: Sequence[Window]) -> Iterator[tuple[Tensor, Tensor]]:
        """Logits [t, V] float32 of some positions that count and the tokens [t] that follow them,
        until there are those of all windows.
        """
        hidden, step = self.engine.runner.hidden([window.ids for window in batch])
        wanted, start = list[int](), 0
        for window in batch:
            wanted += range(start + window.first - 1, start + len(window.ids) - 1)
            start += len(window.ids)
        following = torch.tensor([id for window in batch for id in window.counted])
        for rows, ids in zip(
            torch.tensor(wanted).split(SLICE), following.split(SLICE), strict=True
        ):
            yield self.logits(hidden, replace(step, wanted=rows.to(hidden.device))), ids

    @torch.inference_mode()
    def logits(self, hidden: Tensor, step: Step) -> Tensor:
        return self.engine.runner.model.logits(hidden, step).float().cpu()

    @property
    def weights(self) -> Weights:
        held = {id(s): s for module in weights(self.loaded.model).values() for s in module.held}
        nbytes = sum(storage.nbytes for storage in held.values())
        count = sum(prod(storage.shape) for storage in held.values())
        formats = tuple(sorted({storage.format for storage in held.values()}))
        return Weights(nbytes=nbytes, bits=8 * nbytes / count, formats=formats)


@dataclass(frozen=True)
class Reference:
    """What is kept of the reference's run."""

    steps: list[list[Window]]
    truths: list[Truth]
    samples: Samples
    vocab: int

    @property
    def windows(self) -> list[Window]:
        return [window for step in self.steps for window in step]

    @property
    def longest(self) -> int:
        return max(len(window.ids) for window in self.windows)


@contextmanager
def opened(settings: Settings, plugins: PluginManager, window: int) -> Iterator[Opened]:
    """A model that reads windows of a length. Raises UsageError for one that makes no text."""
    loaded = open_weights(settings, plugins)
    if "text" not in loaded.architecture.tasks:
        raise UsageError(f"{name_of(settings)} makes no text: quality is that of what is said next")
    loaded.context = min(window, loaded.context)
    kind = loaded.device.type
    rows = max(ROWS[kind], loaded.context)
    blocks = ceil(rows / BLOCK[kind]) + SEQUENCES
    alone = replace(settings, context=loaded.context, max_seqs=1)
    with ready_engine(loaded, alone, plugins, rows=rows, blocks=blocks) as engine:
        yield Opened(loaded, engine, rows)


def measure(
    reference: Settings,
    variants: Mapping[str, Settings],
    text: EvaluationText,
    plugins: PluginManager,
    *,
    tokens: int | None = None,
    told: Told = lambda *news: None,
) -> QualityReport:
    """Compare variants, by name, with a reference. `reference.context` is the length of windows,
    `tokens` how much of the text is read.

    Raises an OstroError that says what is wrong and what to do.
    """
    set_threads(reference.threads)
    length = reference.context or WINDOW
    with opened(reference, plugins, length) as model:
        words = Path(reference.tokenizer) if reference.tokenizer else model.loaded.path
        tokenizer = open_tokenizer(words, plugins)
        cuts = windows(text, tokenizer, model.loaded.context, tokens)
        known = listen(model, cuts, told)
        weighed, dtype = model.weights, model.loaded.dtype
    del model
    qualities = []
    for name, settings in variants.items():
        with opened(settings, plugins, length) as model:
            qualities.append(judge(name, model, known, told))
        del model
    return QualityReport(
        model=name_of(next(iter(variants.values()), reference)),
        reference=name_of(reference),
        text=text.name,
        windows=len(known.windows),
        window=known.longest,
        positions=sum(len(truth.following) for truth in known.truths),
        dtype=str(dtype).removeprefix("torch."),
        outcomes=known.truths[0].said.shape[-1],
        weights=weighed,
        perplexity=perplexity(torch.cat([truth.losses for truth in known.truths])),
        variants=tuple(qualities),
    )


def listen(model: Opened, cuts: list[Window], told: Told) -> Reference:
    """Let the reference read all windows."""
    steps = list(batches(cuts, model.rows, SEQUENCES))
    truths = []
    with watch(model.loaded) as samples:
        for i, batch in enumerate(steps):
            told("reference", i, len(steps))
            truths += [keep(logits, following) for logits, following in model.read(batch)]
    return Reference(steps, truths, samples, model.engine.vocab)


def judge(name: str, model: Opened, known: Reference, told: Told) -> Quality:
    """Let a variant read the same windows. Raises UsageError where it cannot."""
    if model.engine.vocab != known.vocab:
        raise UsageError(
            f"{name} has a vocabulary of {model.engine.vocab}, its reference one of {known.vocab}: "
            "name the --reference that it was made of"
        )
    if model.engine.context < known.longest:
        raise UsageError(
            f"{name} has room for {model.engine.context} positions, the longest window has "
            f"{known.longest}; set --context {model.engine.context}"
        )
    truths, parts = iter(known.truths), []
    for i, batch in enumerate(known.steps):
        told(name, i, len(known.steps))
        parts += [differ(next(truths), logits) for logits, _ in model.read(batch)]
    found = join(parts)
    return Quality(
        name=name,
        weights=model.weights,
        kl=mean(found.kl),
        kl_p99=float(found.kl.quantile(0.99)),
        top1=share(found.same),
        perplexity=perplexity(found.losses),
        ratio=perplexity(found.gains),
        layers=errors(known.samples, model.loaded),
    )
