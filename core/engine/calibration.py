"""Calibration: what the weights of a float model are given, and how far errors in them reach.

The model reads what it draws itself. That needs no text which suits it, and the mean divergence of
another model over texts that the first one draws says how far apart is what the two would write.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from math import ceil, prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ostro.core.engine.build import ROWS, build_engine, make_ready
from ostro.core.engine.engine import Engine
from ostro.core.engine.memory import BLOCK
from ostro.core.engine.request import Sampling, TokenRequest
from ostro.core.load.describe import quantization
from ostro.core.load.model import LoadedModel, load_model
from ostro.core.load.open import end_ids
from ostro.core.load.quantize import Maker, QuantizationPlan
from ostro.core.load.weights import WeightReader, arrange, slots
from ostro.core.nn import Head, Linear, Router
from ostro.core.nn.experts import Stack
from ostro.core.nn.linear import Slot
from ostro.core.ops import Target
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Settings

TOKENS = 2048
"""Tokens that the model reads."""

TEXTS, LENGTH, TURNS = 32, 64, 8
"""Texts that are drawn at once, their tokens at most, and how often, where most end at once."""

LOGITS, WORK = 2**26, 2**38
"""Numbers of logits that are kept, and multiplications of one forward pass, at most: to measure a
divergence, a model of a billion weights reads some 270 tokens."""

FEW = 64, 512
"""Tokens that are read to measure a divergence, at least and at most."""

SLICE = 128
"""Positions whose logits there are at a time."""


@dataclass
class Fixed(QuantizationPlan):
    """Brings the slots that it names to formats of their own, beside what its rules say; `outcome`
    says what came of it.
    """

    chosen: Mapping[str, Maker | None] = field(default_factory=dict)
    outcome: str = ""

    def choose(self, slot: Slot) -> Maker | None:
        known = slot.name in self.chosen
        return self.chosen[slot.name] if known else super().choose(slot)

    def told(self) -> list[str]:
        return [self.outcome, *super().told()]


class Calibration:
    """A float model that has drawn some texts, and can be tried with some weights in few bits."""

    def __init__(self, loaded: LoadedModel, engine: Engine, plugins: PluginManager) -> None:
        self.loaded, self.engine = loaded, engine
        self.target = Target(device=loaded.device, dtype=loaded.dtype, exact=True)
        self.reader = WeightReader(
            loaded.container,
            plugins,
            quantization(loaded.raw_config),
            loaded.device,
            loaded.dtype,
        )
        named, left = loaded.names.read(loaded.container.tensors, loaded.space)
        self.below = arrange(named, list(slots(loaded.model)), left)[0]
        self.texts = draw(loaded, engine)
        count = sum(prod(slot.shape) for slot in slots(loaded.model))
        tokens = max(FEW[0], min(FEW[1], LOGITS // engine.vocab, WORK // count))
        read = list(accumulate(map(len, self.texts)))
        self.few = self.texts[: bisect_left(read, tokens) + 1]
        self.truth = list(self.logits(self.few))

    def read(self, texts: Sequence[list[int]]) -> Iterator[tuple[Tensor, Any]]:
        """Hidden states of texts, those of several at a time, and the step they are of."""
        room, batch = ROWS[self.loaded.device.type], list[list[int]]()
        for text in texts:
            if sum(map(len, batch)) + len(text) > room:
                yield self.engine.runner.hidden(batch)
                batch = []
            batch.append(text)
        yield self.engine.runner.hidden(batch)

    @torch.inference_mode()
    def logits(self, texts: Sequence[list[int]]) -> Iterator[Tensor]:
        """Logits [t, V] float32 of all positions of texts, some at a time."""
        for hidden, step in self.read(texts):
            for rows in torch.arange(len(hidden), device=hidden.device).split(SLICE):
                yield self.engine.runner.model.logits(hidden, replace(step, wanted=rows)).float()

    def divergence(self) -> float:
        """KL divergence of what the model says now from what it said at first, nats per token."""
        total, positions = 0.0, 0
        for truth, logits in zip(self.truth, self.logits(self.few), strict=True):
            p, q = (each.double().log_softmax(-1) for each in (truth, logits))
            total += float((p.exp() * (p - q)).sum())
            positions += len(p)
        return total / positions

    def importance(self) -> dict[str, Tensor]:
        """Mean squares [k] float32 of what each column is given, by the names of slots."""
        heard: dict[Module, Heard] = {}
        hooks = [
            module.register_forward_hook(partial(hear, heard))
            for module in self.loaded.model.modules()
            if isinstance(module, Linear | Stack) and not isinstance(module, Router)
        ]
        for _ in self.logits(self.texts):
            pass
        for hook in hooks:
            hook.remove()
        found = {}
        for slot in slots(self.loaded.model):
            users = (slot.module, *self.heads(slot.module))
            user = next((module for module in users if module in heard), None)
            if user is not None and slot.kind == "storage":
                found[slot.name] = heard[user].mean(slot.expert).cpu()
        return found

    def heads(self, module: Module) -> list[Head]:
        """The heads that use an embedding's storage."""
        heads = [m for m in self.loaded.model.modules() if isinstance(m, Head)]
        return [head for head in heads if module in head.tied]

    @contextmanager
    def instead(self, path: str, plan: QuantizationPlan) -> Iterator[None]:
        """While the context lasts, a module holds its weights as a plan says."""
        self.put(path, plan)
        try:
            yield
        finally:
            self.put(path, None)

    def put(self, path: str, plan: QuantizationPlan | None) -> None:
        module: Any = self.loaded.model.get_submodule(path)
        reader = replace(self.reader, plan=plan)
        for slot in module.slots(path):
            if slot.kind == "storage":
                module.fill(slot, reader.storage(slot, self.below[slot.name]))
        for user in (module, *self.heads(module)):
            user.finalize(self.target)


class Heard:
    """Sums of squares of what a weight is given: of each expert, where there are several."""

    def __init__(self, experts: int, k: int, device: torch.device) -> None:
        self.sums = torch.zeros(experts, k, device=device)
        self.counts = torch.zeros(experts, 1, device=device)

    def add(self, x: Tensor, experts: Tensor) -> None:
        """x [t, k], experts [t] int64."""
        self.sums.index_add_(0, experts, x.float().square())
        self.counts += experts.bincount(minlength=len(self.counts))[:, None]

    def mean(self, expert: int | None) -> Tensor:
        """The mean of an expert: one that was given little is taken to be given what all are."""
        everyone = self.sums.sum(0) / self.counts.sum().clamp(min=1)
        mine = expert or 0
        return (self.sums[mine] + everyone) / (self.counts[mine] + 1)


def hear(heard: dict[Module, Heard], module: Any, given: Any, said: Tensor) -> None:
    """A hook: note what a linear or the experts of a layer are given."""
    x = given[0]
    if x.shape[-1] != module.n_in:
        return  # an architecture's own way of multiplying
    x = x.reshape(-1, module.n_in)
    of_one = not isinstance(module, Stack)
    experts = torch.zeros(len(x), dtype=torch.int64, device=x.device) if of_one else given[1]
    if module not in heard:
        heard[module] = Heard(1 if of_one else module.experts, module.n_in, x.device)
    heard[module].add(x, experts)


@contextmanager
def calibrated(path: Path, settings: Settings, plugins: PluginManager) -> Iterator[Calibration]:
    """The float model at a path, loaded as long as the context lasts."""
    loaded = load_model(path, settings, plugins)
    loaded.context = min(loaded.context, LENGTH)
    kind = loaded.device.type
    engine = build_engine(
        loaded,
        replace(settings, context=loaded.context, max_seqs=TEXTS),
        plugins,
        (),
        rows=ROWS[kind],
        blocks=max(TEXTS * (ceil(LENGTH / BLOCK[kind]) + 2), ROWS[kind] // 2),
    )
    try:
        make_ready(engine, loaded)
        yield Calibration(loaded, engine, plugins)
    finally:
        engine.close()
        loaded.container.close()


def draw(loaded: LoadedModel, engine: Engine) -> list[list[int]]:
    """Texts that a model draws, always the same: from where its texts begin, or from any token."""
    generator = torch.Generator().manual_seed(0)
    begin = loaded.raw_config.get("bos_token_id")
    stops = tuple(sorted(end_ids(loaded.container, loaded.raw_config)))
    texts: list[list[int]] = []
    for _ in range(TURNS):
        for token in torch.randint(engine.vocab, (TEXTS,), generator=generator).tolist():
            first = begin if isinstance(begin, int) and 0 <= begin < engine.vocab else token
            rules = Sampling(seed=len(texts), max_tokens=LENGTH - 1, stop_ids=stops)
            id = str(len(texts))
            engine.submit(TokenRequest(id=id, tokens=[first], sampling=rules, cache=False))
            texts.append([first])
        for output in engine.drain():
            texts[int(output.id)] += output.tokens
        if sum(map(len, texts)) >= TOKENS:
            break
    return texts
