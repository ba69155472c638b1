"""Calibration: the inputs of a float model's weights, and the effect of errors in the weights.

The model reads texts that it generated itself. No text has to be found that suits the model, and
the mean divergence of a quantized model over these texts measures how far the outputs of the two
are apart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import accumulate
from math import ceil, prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ostro.core.device import free_bytes
from ostro.core.engine.build import ROWS, ready_engine
from ostro.core.engine.engine import Engine
from ostro.core.engine.memory import BLOCK
from ostro.core.engine.request import Sampling, TokenRequest
from ostro.core.load.describe import ModelOutline, quantization
from ostro.core.load.model import LoadedModel, load_model
from ostro.core.load.open import end_ids
from ostro.core.load.planning import Weight
from ostro.core.load.quantize import Maker, QuantizationPlan
from ostro.core.load.weights import WeightReader, arrange, slots
from ostro.core.nn import Head, Linear, Router
from ostro.core.nn.experts import ExpertLinear
from ostro.core.ops import Target
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Settings

TOKENS = 2048
"""Tokens that importances are measured on."""

TEXTS, LENGTH, TURNS = 32, 64, 8
"""Texts generated in one batch, the most tokens of each, and the most batches: some models end most
texts at once."""

LOGITS, WORK = 2**26, 2**38
"""The most logits that are kept, and the most multiplications of one forward pass: to measure a
divergence, a model of 10^9 weights reads some 270 tokens."""

FEW = 64, 512
"""The least and the most tokens that a divergence is measured on."""

SLICE = 128
"""Positions whose logits are computed at a time."""

SHARE = 0.9
"""The share of free memory that the float model may take."""


class Calibration:
    """A float model with texts that it generated, which can run with some weights quantized."""

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
        self.texts = generate(loaded, engine)
        count = sum(prod(slot.shape) for slot in slots(loaded.model))
        tokens = max(FEW[0], min(FEW[1], LOGITS // engine.vocab, WORK // count))
        read = list(accumulate(map(len, self.texts)))
        self.few = self.texts[: bisect_left(read, tokens) + 1]
        self.truth = list(self.logits(self.few))

    def read(self, texts: Sequence[list[int]]) -> Iterator[tuple[Tensor, Any]]:
        """Hidden states of texts, batch by batch, each with its step."""
        room, batch = ROWS[self.loaded.device.type], list[list[int]]()
        for text in texts:
            if sum(map(len, batch)) + len(text) > room:
                yield self.engine.runner.hidden(batch)
                batch = []
            batch.append(text)
        yield self.engine.runner.hidden(batch)

    @torch.inference_mode()
    def logits(self, texts: Sequence[list[int]]) -> Iterator[Tensor]:
        """Logits [t, V] float32 of all positions of texts, at most `SLICE` positions at a time."""
        for hidden, step in self.read(texts):
            for rows in torch.arange(len(hidden), device=hidden.device).split(SLICE):
                yield self.engine.runner.model.logits(hidden, replace(step, wanted=rows)).float()

    def divergence(self) -> float:
        """KL divergence of the model now from the float model, in nats per token."""
        total, positions = 0.0, 0
        for truth, logits in zip(self.truth, self.logits(self.few), strict=True):
            p, q = (each.double().log_softmax(-1) for each in (truth, logits))
            total += float((p.exp() * (p - q)).sum())
            positions += len(p)
        return total / positions

    def importance(self) -> dict[str, Tensor]:
        """Mean squares [k] float32 of the inputs of each column, by the names of slots."""
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
        for slot in slots(self.loaded.model):
            users = (slot.module, *self.heads(slot.module))
            user = next((module for module in users if module in found), None)
            if user is not None and slot.kind == "storage":
                importance[slot.name] = found[user].mean(slot.expert).cpu()
        return importance

    def heads(self, module: Module) -> list[Head]:
        """The heads that use an embedding's storage."""
        heads = [m for m in self.loaded.model.modules() if isinstance(m, Head)]
        return [head for head in heads if module in head.tied]

    @contextmanager
    def replaced(
        self, weight: Weight, maker: Maker, importance: Mapping[str, Tensor]
    ) -> Iterator[None]:
        """While the context lasts, the model computes with one weight in a format."""
        chosen = {slot.name: maker for slot in weight.slots}
        self.read_module(weight.path, QuantizationPlan({}, None, (), (), importance, chosen=chosen))
        try:
            yield
        finally:
            self.read_module(weight.path, None)

    def read_module(self, path: str, plan: QuantizationPlan | None) -> None:
        """Read the weights of a module again, in the formats of a plan."""
        module: Any = self.loaded.model.get_submodule(path)
        reader = replace(self.reader, plan=plan)
        for slot in module.slots(path):
            if slot.kind == "storage":
                module.fill(slot, reader.storage(slot, self.below[slot.name]))
        for user in (module, *self.heads(module)):
            user.finalize(self.target)


class InputSquares:
    """Sums of squares of the inputs of a weight, of each of its experts if it has any."""

    def __init__(self, experts: int, k: int, device: torch.device) -> None:
        self.sums = torch.zeros(experts, k, device=device)
        self.counts = torch.zeros(experts, 1, device=device)

    def add(self, x: Tensor, experts: Tensor) -> None:
        """x [t, k], experts [t] int64."""
        self.sums.index_add_(0, experts, x.float().square())
        self.counts += experts.bincount(minlength=len(self.counts))[:, None]

    def mean(self, expert: int | None) -> Tensor:
        """Mean squares [k] of an expert's inputs; the mean of all experts counts as one more input,
        so that an expert with few inputs gets nearly that.
        """
        overall = self.sums.sum(0) / self.counts.sum().clamp(min=1)
        mine = expert or 0
        return (self.sums[mine] + overall) / (self.counts[mine] + 1)


def add_inputs(found: dict[Module, InputSquares], module: Any, inputs: Any, output: Tensor) -> None:
    """A forward hook: add the inputs of a linear, or of the experts of a layer."""
    x = inputs[0]
    if x.shape[-1] != module.n_in:
        return  # the architecture multiplies by this weight in another way
    x = x.reshape(-1, module.n_in)
    of_one = not isinstance(module, ExpertLinear)
    experts = torch.zeros(len(x), dtype=torch.int64, device=x.device) if of_one else inputs[1]
    if module not in found:
        found[module] = InputSquares(1 if of_one else module.experts, module.n_in, x.device)
    found[module].add(x, experts)


@contextmanager
def open_probe(
    found: ModelOutline, path: Path, settings: Settings, plugins: PluginManager
) -> Iterator[Calibration | None]:
    """The model at a path in floats, loaded as long as the context lasts.

    None where the model has no task "text", or does not fit in memory in floats.
    """
    floats = float_settings(found, settings)
    if floats is None:
        yield None
        return
    loaded = load_model(path, floats, plugins)
    loaded.context = min(loaded.context, LENGTH)
    kind = loaded.device.type
    batch = replace(floats, context=loaded.context, max_seqs=TEXTS)
    blocks = max(TEXTS * (ceil(LENGTH / BLOCK[kind]) + 2), ROWS[kind] // 2)
    with ready_engine(loaded, batch, plugins, rows=ROWS[kind], blocks=blocks) as engine:
        yield Calibration(loaded, engine, plugins)


def float_settings(found: ModelOutline, settings: Settings) -> Settings | None:
    """Settings that load the model in floats: in float32 where memory allows, else in its dtype.

    None as `open_probe`.
    """
    if "text" not in found.architecture.tasks:
        return None
    nbytes = sum(replace(found, plan=None).weigh().values())
    room = SHARE * free_bytes(found.device)
    wide = nbytes * torch.float32.itemsize // found.dtype.itemsize
    if nbytes > room:
        return None
    dtype = torch.float32 if wide <= room else found.dtype
    return replace(
        Settings(device=str(found.device), dtype=str(dtype).removeprefix("torch."), exact=True),
        reference=settings.reference,
        arch=settings.arch,
        allow_config=settings.allow_config,
        dummy_weights=settings.dummy_weights,
    )


def generate(loaded: LoadedModel, engine: Engine) -> list[list[int]]:
    """Texts that a model generates from its BOS token or random ones, the same each time."""
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
