"""A subject: a tiny reference model with honest weights, and ours loaded from its checkpoint."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ostro.core.engine.build import build_engine
from ostro.core.engine.engine import Engine
from ostro.core.engine.request import Sampling, TokenRequest
from ostro.core.load.model import LoadedModel, load_model
from ostro.core.plugins import PluginManager
from ostro.core.records import Architecture, Settings, resolve

BAR = 2e-4
"""The most that logits may differ, as a share of their standard deviation, in float32."""

RED = 10 * BAR
"""The least that a mutant must differ."""

STD = 0.2
LENGTH = 60


@dataclass
class Subject:
    """One architecture under test: the reference with re-initialised weights, saved in `folder`."""

    record: Architecture
    reference: Any
    folder: Path
    plugins: PluginManager

    @property
    def prompt(self) -> list[int]:
        """Longer than windows, blocks and chunks."""
        generator = torch.Generator().manual_seed(1)
        vocab = self.reference.config.get_text_config().vocab_size
        return torch.randint(3, vocab, (LENGTH,), generator=generator).tolist()

    def load(self, **settings: Any) -> LoadedModel:
        asked = Settings(dtype="float32", **settings)
        return load_model(self.folder, asked, self.plugins)

    def engine(
        self,
        loaded: LoadedModel | None = None,
        *,
        rows: int = 512,
        blocks: int = 64,
        **settings: Any,
    ) -> Engine:
        """An engine with small blocks over `loaded`, or over ours freshly loaded."""
        loaded = loaded or self.load(**settings)
        asked = Settings(dtype="float32", **settings)
        return build_engine(loaded, asked, self.plugins, [], rows=rows, block=16, blocks=blocks)

    @torch.inference_mode()
    def truth(self, tokens: Sequence[int]) -> Tensor:
        """The reference's logits [T, V] float32."""
        logits: Tensor = self.reference(torch.tensor([list(tokens)])).logits[0]
        return logits.float()

    @torch.inference_mode()
    def truth_tokens(self, prompt: Sequence[int], count: int) -> list[int]:
        """The reference's greedy continuation, recomputed from scratch for each token."""
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(self.truth(tokens)[-1].argmax()))
        return tokens[len(prompt) :]


def deviation(ours: Tensor, truth: Tensor) -> float:
    """max |ours - truth| as a share of the truth's standard deviation; inf where not finite."""
    share = float((ours - truth).abs().max() / truth.std())
    return share if share == share else float("inf")


@torch.no_grad()
def reinitialise(model: torch.nn.Module, std: float, seed: int = 0) -> None:
    """Give weights a spread at which bugs show: matrices N(0, std), norms 1 + N(0, std) or N(0,
    std) where the model adds the 1 itself, biases N(0, std). Buffers that a checkpoint holds count
    as weights."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not tensor.is_floating_point():
            continue
        norm = "norm" in name.lower() and tensor.dim() == 1
        centre = 1.0 if norm and float(tensor.mean()) > 0.5 else 0.0
        tensor.normal_(centre, std, generator=generator)


@contextmanager
def subject(
    plugins: PluginManager,
    name: str,
    *,
    config: Mapping[str, Any] | None = None,
    std: float = STD,
) -> Iterator[Subject]:
    """Build the reference of an architecture's tiny config, save it, and hand both over."""
    record: Architecture = plugins.get("architectures", name)
    assert record.reference is not None, f"{name} names no reference class"
    cls = resolve(record.reference)
    shape = dict(record.tiny or {}) if config is None else dict(config)
    reference = cls(cls.config_class(**shape)).eval().float()
    reinitialise(reference, std)
    with tempfile.TemporaryDirectory() as folder:
        reference.save_pretrained(folder)
        yield Subject(record, reference, Path(folder), plugins)


def greedy(engine: Engine, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """Greedy continuations of all prompts in one batch."""
    rules = Sampling(temperature=0, max_tokens=count, ignore_eos=True)
    for i, prompt in enumerate(prompts):
        engine.submit(TokenRequest(id=str(i), tokens=list(prompt), sampling=rules))
    answers: dict[str, list[int]] = {str(i): [] for i in range(len(prompts))}
    for output in engine.drain():
        answers[output.id] += output.tokens
    return [answers[str(i)] for i in range(len(prompts))]
