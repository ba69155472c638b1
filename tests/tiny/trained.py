"""PEFT adapters on tiny references, saved by PEFT, and ostro's adapters over the same base."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import torch
from torch import Tensor

from ostro import nn
from ostro.core.adapters.adapter import LoadedAdapter, Mixture
from ostro.core.adapters.pool import MixtureLease
from ostro.core.adapters.registry import Registry
from ostro.core.engine.engine import Engine, rekey_media
from ostro.core.messages.requests import AdapterRef, Sampling, TokenRequest
from ostro.plugins.conformance.examples import Example
from ostro.plugins.conformance.parity import MASKED, Subject
from ostro.plugins.conformance.weights import SEED

BAR = 2e-5
"""Largest relative deviation from PEFT's output, in float32. Most are below 1e-5; on CPUs without
AVX-512, which add in another order, one reached 1.15e-5."""

FELT = 0.05
"""Smallest relative change of the output by an adapter."""

RED = 10 * BAR
"""Smallest relative deviation of a mutant."""

Names = Sequence[str] | Mapping[str, float]
"""Names of adapters, or scales by adapter name."""


def train(model: Any, folder: Path, *, seed: int = SEED, std: float = 0.2, **config: Any) -> Any:
    """Add an adapter of `peft.LoraConfig(**config)` with random trained weights to a copy of a
    model, and save it in `folder`. Return the model inside PEFT's wrapper.
    """
    return wrap(model, folder, seed=seed, std=std, **config).base_model.model


def wrap(model: Any, folder: Path, *, seed: int = SEED, std: float = 0.2, **config: Any) -> Any:
    """As `train`, but return PEFT's wrapper, which finds the invocation tokens of aLoRA."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT warns of unusual configs, which are tested here
        made = peft.get_peft_model(deepcopy(model), peft.LoraConfig(**config)).eval()
        draw(made, seed=seed, std=std)
        made.save_pretrained(str(folder))
    return made


def train_several(model: Any, folder: Path, configs: Mapping[str, Mapping[str, Any]]) -> Any:
    """As `train`, with several simultaneous adapters, each saved below `folder` by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (name, config), *rest = configs.items()
        made: Any = peft.get_peft_model(deepcopy(model), peft.LoraConfig(**config), name)
        for other, config in rest:
            made.add_adapter(other, peft.LoraConfig(**config))
        made.base_model.set_adapter(list(configs))
        draw(made.eval())
        made.save_pretrained(str(folder))
    return made.base_model.model


@torch.no_grad()
def draw(model: torch.nn.Module, *, seed: int = SEED, std: float = 0.2) -> None:
    """Randomise the trained weights: factors are drawn from N(0, std), DoRA magnitudes are scaled
    by 1 + N(0, std), and N(0, std) is added to others.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if not weight.requires_grad:
            continue
        noise = torch.empty_like(weight).normal_(0, std, generator=generator)
        if "magnitude" in name:
            weight.mul_(1 + noise)
        elif "lora_" in name:
            weight.copy_(noise)
        else:
            weight.add_(noise)


class LoadedAdapters:
    """The adapter registry of a model, with synchronous loading."""

    def __init__(self, registry: Registry | None) -> None:
        assert registry is not None, "the model was built with one"
        self.registry = registry

    def load(self, name: str, folder: Path) -> LoadedAdapter:
        """Register the adapter of a folder under a name. Raises AdapterError."""
        ended = threading.Event()
        self.registry.wake = ended.set
        self.registry.load("load", name, str(folder), inplace=True)
        ended.wait()
        [result] = self.registry.poll()
        if result.error is not None:
            raise result.error
        return self.registry.store.adapters[self.registry.find(name).generation or ""]

    def mixture(self, names: Names, tokens: Sequence[int] = ()) -> Mixture:
        """Return the mixture of loaded adapters for a request with these tokens."""
        scales = names if isinstance(names, Mapping) else dict.fromkeys(names, 1.0)
        return self.registry.mixture(
            [AdapterRef(name=n, scale=s) for n, s in scales.items()], tokens
        )

    @contextmanager
    def held(self, names: Names, tokens: Sequence[int] = ()) -> Iterator[MixtureLease]:
        """Hold a mixture on the device within the block."""
        adapter_pool = self.registry.store.adapter_pool
        held = adapter_pool.acquire(self.mixture(names, tokens))
        assert held is not None, "there is room"
        try:
            yield held
        finally:
            adapter_pool.release(held)


class Served(LoadedAdapters):
    """An engine over a subject's base, with loaded adapters."""

    def __init__(self, subject: Subject, engine: Engine | None = None) -> None:
        self.subject, self.engine = subject, engine or subject.engine()
        super().__init__(self.engine.registry)

    def answer(self, example: Example, names: Names = (), rows: int = 512) -> Tensor:
        """Return logits [T, V] of an example with adapters, without masked ids."""
        prompt = example.prompt
        with self.held(names, prompt.tokens) as held:
            logits = self.engine.runner.logits(
                prompt.tokens,
                rows,
                items=rekey_media(list(prompt.items), self.mixture(names, prompt.tokens)),
                positions=prompt.positions,
                lease=held,
            )
        return logits[:, : 1 + int((logits.amax(0) > MASKED).nonzero().max())]

    def states(self, names: Names = ()) -> Tensor:
        """Return an encoder's states [T, d] or scores [1, labels] with adapters."""
        runner, subject = self.engine.runner, self.subject
        with self.held(names) as held, torch.inference_mode():
            hidden, step = runner.hidden([subject.prompt], [subject.kinds], [held])
            if type(runner.model).scores is not nn.EncoderModel.scores:
                hidden = runner.model.scores(hidden, step)
        return hidden.float()

    def greedy(self, asked: Sequence[tuple[Example, Names]], count: int) -> list[list[int]]:
        """Return greedy continuations of examples in one batch, each with its own adapters."""
        rules = Sampling(temperature=0, max_tokens=count, ignore_eos=True)
        for i, (example, names) in enumerate(asked):
            prompt = example.prompt
            request = TokenRequest(
                id=str(i),
                tokens=prompt.tokens,
                items=prompt.items,
                positions=prompt.positions,
                sampling=rules,
            )
            self.engine.submit(request, self.mixture(names, prompt.tokens))
        answers: dict[str, list[int]] = {str(i): [] for i in range(len(asked))}
        for output in self.engine.drain():
            answers[output.id] += output.tokens
        return list(answers.values())


def wrapped(subject: Subject, model: Any) -> Subject:
    """Return a subject whose reference is a model with an adapter."""
    return replace(subject, reference=model)


def distance(ours: Tensor, truth: Tensor) -> float:
    """Return |ours - truth| / |truth|, infinite for NaN."""
    assert ours.shape == truth.shape, f"{ours.shape = } {truth.shape = }"
    share = float((ours - truth).norm() / truth.norm())
    return share if share == share else float("inf")


def compare(served: Served, folder: Path, *, rows: int = 512, **config: Any) -> LoadedAdapter:
    """Train an adapter on the reference, and compare ostro's output with PEFT's for all examples.

    `config` are the arguments of `train`. If there are several examples, the adapter need not
    change those of text alone.
    """
    subject = served.subject
    theirs = wrapped(subject, train(subject.reference, folder, **config))
    adapter = served.load("it", folder)
    for example, base in subject.cases:
        truth = theirs.reference_output(example)
        changed, off = distance(base, truth), distance(served.answer(example, ["it"], rows), truth)
        assert off <= BAR, f"{off = } {changed = }"
        if example.prompt.items or len(subject.cases) == 1:
            assert changed > FELT, f"{changed = }"
    return adapter
