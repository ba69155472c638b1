"""A subject: a tiny reference with honest weights, and ours loaded from its checkpoint."""

from __future__ import annotations

import inspect
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ostro.core.adapters.adapter import EMPTY, Mixture
from ostro.core.adapters.pool import NOTHING, MixtureLease
from ostro.core.config import ModelConfig
from ostro.core.engine.build import build_engine
from ostro.core.engine.engine import Engine, media_under
from ostro.core.engine.request import Sampling, TokenRequest
from ostro.core.load.model import LoadedModel, load_model
from ostro.core.load.names import Names
from ostro.core.media import Inputs, Prompt
from ostro.core.nn import EncoderModel
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Architecture, Settings, resolve
from ostro.plugins.conformance import golden, references
from ostro.plugins.conformance.examples import Example
from ostro.plugins.conformance.weights import read_config
from ostro.plugins.conformance.weights import reinitialise as reinitialise

BAR = 2e-4
"""The most that logits may differ, as a share of their standard deviation, in float32."""

RED = 10 * BAR
"""The least that a mutant must differ."""

STD, SMALL = golden.SPREADS
"""The spread of weights at which most bugs show, and the one at which a wrong epsilon does."""

LENGTH = golden.LENGTH

NEVER = -1e38
"""The most that the logits of an id may be which is never said."""


@dataclass
class Subject:
    """One architecture under test: the reference with re-initialised weights, saved in `folder`.

    `shape` is the config that both are made of, `std` the spread of the weights.
    """

    record: Architecture
    reference: Any
    folder: Path
    plugins: PluginManager
    shape: Mapping[str, Any] = field(default_factory=dict)
    std: float = STD

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def decodes(self) -> bool:
        """Whether it generates tokens; an encoder is compared by its states or scores."""
        return decodes(self.record)

    @cached_property
    def raw_config(self) -> dict[str, Any]:
        """The checkpoint's config.json."""
        found: dict[str, Any] = json.loads((self.folder / "config.json").read_text())
        return found

    @cached_property
    def config(self) -> ModelConfig:
        return read_config(self.record, self.raw_config, self.plugins)[0]

    @property
    def names(self) -> Names:
        """How checkpoints name the weights."""
        return read_config(self.record, self.raw_config, self.plugins)[1]

    @cached_property
    def inputs(self) -> Inputs:
        """What makes items of media, over the files that the record's examples bring."""
        assert self.record.inputs and self.examples
        found: Inputs = resolve(self.record.inputs)(self.raw_config, self.folder)
        return found

    @cached_property
    def examples(self) -> list[Example]:
        """What ours and the reference are compared on: text alone where the model takes that, and
        the prompts with media that the record names.
        """
        named = self.record.examples
        own = resolve(named)(self.folder, self.raw_config) if named else ()
        alone = "text" in self.record.tasks or not named
        return [Example(Prompt(tokens=self.prompt))] * alone + list(own)

    @cached_property
    def cases(self) -> list[tuple[Example, Tensor]]:
        """The examples, and what the reference makes of each."""
        return [(example, self.said(example)) for example in self.examples]

    @property
    def prompt(self) -> list[int]:
        """Longer than windows, blocks and chunks."""
        known: list[int] | None = getattr(self.reference, "prompt", None)
        return known or golden.prompt(self.config.vocab_size)

    @property
    def kinds(self) -> list[int]:
        """The kind of text that each token of the prompt belongs to: its last third is another."""
        n = len(self.prompt)
        return [int(i > 2 * n // 3) for i in range(n)]

    def load(self, **settings: Any) -> LoadedModel:
        arch = None if self.record.classes else self.name
        asked = Settings(**{"dtype": "float32", "arch": arch, **settings})
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
        asked = Settings(**{"dtype": "float32", **settings})
        return build_engine(loaded, asked, self.plugins, [], rows=rows, block=16, blocks=blocks)

    def answer(
        self,
        engine: Engine,
        example: Example | None = None,
        rows: int = 512,
        mixture: Mixture = EMPTY,
    ) -> Tensor:
        """What ours makes of an example, the first where none is named: logits [T, V] in steps of
        about `rows` rows, or an encoder's states or scores; under the adapters of a mixture. Ids at
        the end that are never said (placeholders of media) are left out, as a reference may have
        none for them.
        """
        prompt = (example or self.examples[0]).prompt
        held = engine.runner.adapter_pool.hold(mixture) if engine.runner.adapter_pool else NOTHING
        assert held is not None, f"{mixture.generations = } have room"
        try:
            if not self.decodes:
                return encode(engine, [prompt.tokens], [self.kinds], held)
            logits = engine.runner.logits(
                prompt.tokens,
                rows,
                items=media_under(prompt.items, mixture),
                positions=prompt.positions,
                held=held,
            )
        finally:
            if engine.runner.adapter_pool is not None:
                engine.runner.adapter_pool.let_go(held)
        never = logits.amax(0) <= NEVER
        return logits[:, : 1 + int((~never).nonzero().max())]

    @property
    def expected(self) -> Tensor:
        """What the reference makes of the first example."""
        return self.cases[0][1]

    def off(self, engine: Engine, rows: int = 512) -> float:
        """How far ours is from the reference: the most of all examples."""
        return max(deviation(self.answer(engine, e, rows), expected) for e, expected in self.cases)

    def said(self, example: Example, generated: Sequence[int] = ()) -> Tensor:
        """What the reference makes of an example, and of tokens that were generated behind it."""
        kinds = None if self.decodes else self.kinds
        tokens = [*example.prompt.tokens, *generated]
        return self.truth(tokens, kinds, **example.asked(len(generated)))

    @torch.inference_mode()
    def truth(
        self, tokens: Sequence[int], kinds: Sequence[int] | None = None, **media: Tensor
    ) -> Tensor:
        """The reference's logits [T, V], its states [T, d] or scores [1, labels], in float32."""
        ids = torch.tensor([list(tokens)])
        if kinds is not None and takes(self.reference, "token_type_ids"):
            media["token_type_ids"] = torch.tensor([list(kinds)])
        if takes(self.reference, "decoder_input_ids"):
            out = self.reference(decoder_input_ids=ids, **media)
        else:
            out = self.reference(ids, **media)
        found: Tensor = out if isinstance(out, Tensor) else answer_of(out)
        return (found[0] if found.dim() == 3 else found).float()

    def truth_tokens(self, prompt: Sequence[int] | Example, count: int) -> list[int]:
        """The reference's greedy continuation, recomputed from scratch for each token.

        It ends at a placeholder, which a reference that begins anew takes for one more medium.
        """
        example = prompt if isinstance(prompt, Example) else Example(Prompt(tokens=list(prompt)))
        ends = {*self.inputs.placeholders.values()} if self.record.examples else set[int]()
        tokens: list[int] = []
        while len(tokens) < count and not ends & {*tokens[-1:]}:
            tokens.append(int(self.said(example, tokens)[-1].argmax()))
        return tokens


def decodes(record: Architecture) -> bool:
    """Whether a record's model generates tokens: from text, or from the media of its examples."""
    return "text" in record.tasks or record.examples is not None


def takes(function: Any, argument: str) -> bool:
    return argument in inspect.signature(getattr(function, "forward", function)).parameters


def answer_of(out: Any) -> Tensor:
    """The logits of a reference's output, or its last hidden states."""
    found: Tensor = out.logits if hasattr(out, "logits") else out.last_hidden_state
    return found


@torch.inference_mode()
def encode(
    engine: Any,
    inputs: Sequence[list[int]],
    kinds: Sequence[list[int]],
    held: MixtureLease = NOTHING,
) -> Tensor:
    """An encoder's states [T, d] of several texts, or its scores [texts, labels], in float32."""
    model: EncoderModel = engine.runner.model
    hidden, step = engine.runner.hidden(inputs, kinds, [held] * len(inputs))
    if type(model).scores is not EncoderModel.scores:
        hidden = model.scores(hidden, step)
    return hidden.float().cpu()


def deviation(ours: Tensor, truth: Tensor) -> float:
    """max |ours - truth| as a share of the truth's standard deviation; inf where not finite."""
    share = float((ours - truth).abs().max() / truth.std())
    return share if share == share else float("inf")


@contextmanager
def subject(
    plugins: PluginManager,
    name: str,
    *,
    config: Mapping[str, Any] | None = None,
    std: float = STD,
) -> Iterator[Subject]:
    """Build the reference of an architecture's tiny config, save it, and hand both over.

    Raises PluginError where the record names no reference or no tiny config.
    """
    record: Architecture = plugins.get("architectures", name)
    shape = dict(record.tiny or {}) if config is None else dict(config)
    reference = references.build(record, shape, std, plugins)
    with tempfile.TemporaryDirectory() as folder:
        references.save(record, reference, shape, Path(folder))
        yield Subject(record, reference, Path(folder), plugins, shape, std)


def greedy(
    engine: Engine,
    prompts: Sequence[Sequence[int] | Prompt],
    count: int,
    mixtures: Sequence[Mixture] = (),
) -> list[list[int]]:
    """Greedy continuations of all prompts in one batch, each under its own adapters."""
    rules = Sampling(temperature=0, max_tokens=count, ignore_eos=True)
    for i, each in enumerate(prompts):
        prompt = each if isinstance(each, Prompt) else Prompt(tokens=list(each))
        engine.submit(
            TokenRequest(
                id=str(i),
                tokens=prompt.tokens,
                items=prompt.items,
                positions=prompt.positions,
                sampling=rules,
            ),
            mixtures[i] if mixtures else EMPTY,
        )
    answers: dict[str, list[int]] = {str(i): [] for i in range(len(prompts))}
    for output in engine.drain():
        answers[output.id] += output.tokens
    return [answers[str(i)] for i in range(len(prompts))]
