"""Calibration: importances of a float model's weights, and the divergence of quantized weights.

The model reads texts that it generated itself, so calibration needs no data set. The mean
divergence over these texts measures how far the outputs of the quantized model are from those of
the float model.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import accumulate
from math import ceil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ostro.core.device import free_bytes
from ostro.core.engine.engine import Engine
from ostro.core.engine.startup.build import ready_engine
from ostro.core.engine.startup.memory import BLOCK, ROWS
from ostro.core.load.describe import ModelOutline
from ostro.core.load.model import LoadedModel, load_model
from ostro.core.load.open import end_ids
from ostro.core.load.planning import PlannedWeight
from ostro.core.load.quantize import Maker, QuantizationPlan
from ostro.core.load.weights import weight_slots
from ostro.core.messages.requests import Sampling, TokenRequest
from ostro.core.nn import Head, Linear, Router
from ostro.core.nn.experts import ExpertLinear
from ostro.core.ops import Target
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import ProgressCallback, Settings

TOKENS = 768
"""The least tokens of texts; importances are measured on all of them."""

TEXTS, LENGTH, BATCHES = 16, 64, 16
"""Texts generated in one batch, the most tokens of each, and the most batches: some models end most
texts at once."""

DIVERGENCE_TOKENS = 64
"""The least tokens on which a divergence is measured. The divergences of weights are compared on
the same tokens, so that few suffice."""

SLICE = 128
"""Positions whose logits are computed at a time."""

SHARE = 0.9
"""The share of free memory that the float model may take."""


class Calibration:
    """A float model with texts that it generated; some weights can be quantized temporarily."""

    def __init__(self, loaded: LoadedModel, engine: Engine, plugins: PluginManager) -> None:
        self.loaded, self.engine = loaded, engine
        self.target = Target(device=loaded.device, dtype=loaded.dtype, exact=True)
        self.reader = loaded.reader(plugins)
        self.tensors = loaded.arrange()[0]
        self.texts = generate(loaded, engine)
        read = list(accumulate(map(len, self.texts)))
        self.divergence_texts = self.texts[: bisect_left(read, DIVERGENCE_TOKENS) + 1]
        self.reference = [(each, each.softmax(-1)) for each in self.logits(self.divergence_texts)]

    def read(self, texts: Sequence[list[int]]) -> Iterator[tuple[Tensor, Any]]:
        """Hidden states [t, d] of texts, batch by batch, each with its step."""
        rows, batch = ROWS[self.loaded.device.type], list[list[int]]()
        for text in texts:
            if sum(map(len, batch)) + len(text) > rows:
                yield self.engine.runner.hidden(batch)
                batch = []
            batch.append(text)
        yield self.engine.runner.hidden(batch)

    @torch.inference_mode()
    def logits(self, texts: Sequence[list[int]]) -> Iterator[Tensor]:
        """Logits [t, V] float32 of all positions of texts, at most `SLICE` positions at a time."""
        logits = self.engine.runner.model.logits
        for hidden, step in self.read(texts):
            for rows in torch.arange(len(hidden), device=hidden.device).split(SLICE):
                yield logits(hidden, replace(step, logits_indices=rows)).float()

    @torch.inference_mode()
    def divergence(self) -> float:
        """KL divergence of the current model from the float model, in nats per token.

        log E_p[exp(d - E_p[d])] for differences d of the logits: small differences keep their
        precision in float32, unlike differences of log-probabilities.
        """
        current = self.logits(self.divergence_texts)
        found = []
        for (reference, p), logits in zip(self.reference, current, strict=True):
            change = logits.sub_(reference)
            change -= (p * change).sum(-1, keepdim=True)
            found.append((p * change.expm1_()).sum(-1).log1p_())
        return float(torch.cat(found).mean())

    def importance(self) -> dict[str, Tensor]:
        """Mean squares [k] float32 of the inputs of each weight's columns, by slot name."""
        found: dict[Module, InputSquares] = {}
        hooks = [
            module.register_forward_hook(partial(add_inputs, found))
            for module in self.loaded.model.modules()
            if isinstance(module, Linear | ExpertLinear) and not isinstance(module, Router)
        ]
        for _ in self.logits(self.texts):
            pass
        for hook in hooks:
            hook.remove()
        importance = {}
        for slot in weight_slots(self.loaded.model):
            users = (slot.module, *self.heads(slot.module))
            user = next((module for module in users if module in found), None)
            if user is not None and slot.kind == "storage":
                importance[slot.name] = found[user].mean(slot.expert).cpu()
        return importance

    def heads(self, module: Module) -> list[Head]:
        """The heads that use an embedding's storage."""
        return [m for m in self.loaded.model.modules() if isinstance(m, Head) and module in m.tied]

    @contextmanager
    def replaced(
        self, weight: PlannedWeight, maker: Maker, importance: Mapping[str, Tensor]
    ) -> Iterator[None]:
        """Quantize one weight of the model within the context."""
        chosen = {slot.name: maker for slot in weight.slots}
        self.read_module(weight.path, QuantizationPlan({}, None, (), (), importance, chosen=chosen))
        try:
            yield
        finally:
            self.read_module(weight.path, None)

    def read_module(self, path: str, plan: QuantizationPlan | None) -> None:
        """Read the weights of a module again, in the formats of a plan, or as floats."""
        module: Any = self.loaded.model.get_submodule(path)
        reader = replace(self.reader, plan=plan)
        for slot in module.slots(path):
            if slot.kind == "storage":
                module.fill(slot, reader.storage(slot, self.tensors[slot.name]))
        for user in (module, *self.heads(module)):
            user.finalize(self.target)


class InputSquares:
    """Sums of squares of the inputs of a weight, for each of its experts if it has any."""

    def __init__(self, experts: int, k: int, device: torch.device) -> None:
        self.sums = torch.zeros(experts, k, device=device)
        self.counts = torch.zeros(experts, 1, device=device)

    def add(self, x: Tensor, experts: Tensor) -> None:
        """x [t, k], experts [t] int64."""
        self.sums.index_add_(0, experts, x.float().square())
        self.counts += experts.bincount(minlength=len(self.counts))[:, None]

    def mean(self, expert: int | None) -> Tensor:
        """Mean squares [k] of an expert's inputs.

        The mean of all experts counts as one more input, so that an expert with few inputs gets
        nearly that mean.
        """
        overall = self.sums.sum(0) / self.counts.sum().clamp(min=1)
        index = expert or 0
        return (self.sums[index] + overall) / (self.counts[index] + 1)


def add_inputs(found: dict[Module, InputSquares], module: Any, inputs: Any, output: Tensor) -> None:
    """A forward hook: add the inputs of a linear, or of the experts of a layer."""
    x = inputs[0]
    if x.shape[-1] != module.n_in:
        return  # the architecture uses this weight in another way
    x = x.reshape(-1, module.n_in)
    if isinstance(module, ExpertLinear):
        count, experts = module.experts, inputs[1]
    else:
        count, experts = 1, torch.zeros(len(x), dtype=torch.int64, device=x.device)
    found.setdefault(module, InputSquares(count, module.n_in, x.device)).add(x, experts)


@contextmanager
def open_probe(
    found: ModelOutline,
    path: Path,
    settings: Settings,
    plugins: PluginManager,
    progress: ProgressCallback,
) -> Iterator[Calibration | None]:
    """Load the model at a path in floats, within the context.

    None if the model does not have the task "text", or does not fit in memory in floats.
    """
    floats = float_settings(found, settings)
    if floats is None:
        yield None
        return
    loaded = load_model(path, floats, plugins, progress)
    loaded.context = min(loaded.context, LENGTH)
    kind = loaded.device.type
    batch = replace(floats, context=loaded.context, max_seqs=TEXTS)
    blocks = max(TEXTS * (ceil(LENGTH / BLOCK[kind]) + 2), ROWS[kind] // 2)
    with ready_engine(loaded, batch, plugins, rows=ROWS[kind], blocks=blocks) as engine:
        progress("generating texts for calibration", 0, 0)
        yield Calibration(loaded, engine, plugins)


def float_settings(found: ModelOutline, settings: Settings) -> Settings | None:
    """Settings that load the model in floats: in float32 if that fits, else in its dtype.

    None as in `open_probe`.
    """
    if "text" not in found.architecture.tasks:
        return None
    nbytes = sum(replace(found, plan=None).weigh().values())
    room = SHARE * free_bytes(found.device)
    wide = nbytes * torch.float32.itemsize // found.dtype.itemsize
    if nbytes > room:
        return None
    dtype = torch.float32 if wide <= room else found.dtype
    return Settings(
        device=str(found.device),
        dtype=str(dtype).removeprefix("torch."),
        exact=True,
        reference=settings.reference,
        arch=settings.arch,
        allow_config=settings.allow_config,
        dummy_weights=settings.dummy_weights,
    )


def generate(loaded: LoadedModel, engine: Engine) -> list[list[int]]:
    """Texts that a model generates from its BOS token or from random ones.

    All seeds are fixed, so that the same model gets the same formats each time.
    """
    generator = torch.Generator().manual_seed(0)
    begin = loaded.raw_config.get("bos_token_id")
    stops = tuple(sorted(end_ids(loaded.container, loaded.raw_config)))
    texts: list[list[int]] = []
    for _ in range(BATCHES):
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
