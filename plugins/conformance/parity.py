"""Parity: a tiny reference with random weights, our model of its checkpoint, and deviations."""

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
from ostro.core.engine.engine import Engine, rekey_media
from ostro.core.engine.startup.build import build_engine
from ostro.core.load.model import LoadedModel, load_model
from ostro.core.load.names import Names
from ostro.core.media.inputs import Inputs
from ostro.core.messages.prompt import Prompt
from ostro.core.messages.requests import Sampling, TokenRequest
from ostro.core.nn import EncoderModel
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Architecture, resolve
from ostro.core.settings import Settings
from ostro.plugins.conformance import golden, references
from ostro.plugins.conformance.examples import Example
from ostro.plugins.conformance.weights import read_config
from ostro.plugins.conformance.weights import reinitialise as reinitialise

BAR = 2e-4
"""The largest deviation of logits in float32, in units of the reference's standard deviation."""

RED = 10 * BAR
"""The least deviation of a mutant."""

STD, SMALL = golden.SPREADS
"""Standard deviations of weights: one for most bugs, and a small one for epsilons."""

LENGTH = golden.LENGTH

MASKED = -1e38
"""Logits at most this large are masked: the id cannot be sampled."""


@dataclass
class Subject:
    """One architecture under test: the reference with re-initialised weights, saved in `folder`.

    `shape` is the config of both models, `std` the standard deviation of the weights.
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
        """Whether the model generates tokens; encoders are compared by hidden states or scores."""
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
        """The names of the weights in checkpoints."""
        return read_config(self.record, self.raw_config, self.plugins)[1]

    @cached_property
    def inputs(self) -> Inputs:
        """The record's Inputs, which read the files that its examples write."""
        assert self.record.inputs and self.examples
        found: Inputs = resolve(self.record.inputs)(self.raw_config, self.folder)
        return found

    @property
    def placeholders(self) -> set[int]:
        """The token ids that stand for media; none without examples."""
        return {*self.inputs.placeholders.values()} if self.record.conformance.examples else set()

    @cached_property
    def examples(self) -> list[Example]:
        """The prompts of the comparison: a text, if the model takes text alone, and the examples of
        the record.
        """
        named = self.record.conformance.examples
        own = resolve(named)(self.folder, self.raw_config) if named else ()
        alone = "text" in self.record.tasks or not named
        return [Example(Prompt(tokens=self.prompt))] * alone + list(own)

    @cached_property
    def cases(self) -> list[tuple[Example, Tensor]]:
        """The examples with the reference's outputs."""
        return [(example, self.reference_output(example)) for example in self.examples]

    @property
    def prompt(self) -> list[int]:
        """Random token ids, longer than windows, cache blocks and chunks."""
        golden_prompt: list[int] | None = getattr(self.reference, "prompt", None)
        return golden_prompt or golden.prompt(self.config.vocab_size)

    @property
    def kinds(self) -> list[int]:
        """The token type ids of the prompt: 1 in its last third, else 0."""
        n = len(self.prompt)
        return [int(i > 2 * n // 3) for i in range(n)]

    def load(self, **settings: Any) -> LoadedModel:
        """Load our model from the checkpoint, in float32 by default."""
        arch = None if self.record.classes else self.name
        resolved = Settings(**{"dtype": "float32", "arch": arch, **settings})
        return load_model(self.folder, resolved, self.plugins)

    def engine(
        self,
        loaded: LoadedModel | None = None,
        *,
        rows: int = 512,
        blocks: int = 64,
        **settings: Any,
    ) -> Engine:
        """An engine with small blocks for `loaded`, or for a newly loaded model."""
        loaded = loaded or self.load(**settings)
        resolved = Settings(**{"dtype": "float32", **settings})
        return build_engine(loaded, resolved, self.plugins, [], rows=rows, block=16, blocks=blocks)

    def answer(
        self,
        engine: Engine,
        example: Example | None = None,
        rows: int = 512,
        mixture: Mixture = EMPTY,
    ) -> Tensor:
        """Our outputs for an example, by default the first, with the adapters of `mixture`.

        These are logits [T, V], computed in steps of about `rows` rows, or an encoder's states
        [T, d] or scores [1, labels]. Masked ids at the end of the vocabulary (placeholders of
        media) are cut off, because a reference may lack them.
        """
        prompt = (example or self.examples[0]).prompt
        lease = (
            engine.runner.adapter_pool.acquire(mixture) if engine.runner.adapter_pool else NOTHING
        )
        assert lease is not None, f"{mixture.generations = } fit the adapter pool"
        try:
            if not self.decodes:
                return encode(engine, [prompt.tokens], [self.kinds], lease)
            logits = engine.runner.logits(
                prompt.tokens,
                rows,
                items=rekey_media(prompt.items, mixture),
                positions=prompt.positions,
                lease=lease,
            )
        finally:
            if engine.runner.adapter_pool is not None:
                engine.runner.adapter_pool.release(lease)
        masked = logits.amax(0) <= MASKED
        return logits[:, : 1 + int((~masked).nonzero().max())]

    @property
    def expected(self) -> Tensor:
        """The reference's output for the first example."""
        return self.cases[0][1]

    def off(self, engine: Engine, rows: int = 512) -> float:
        """The largest deviation from the reference of all examples."""
        return max(deviation(self.answer(engine, e, rows), expected) for e, expected in self.cases)

    def reference_output(self, example: Example, generated: Sequence[int] = ()) -> Tensor:
        """The reference's output for an example, followed by generated tokens."""
        kinds = None if self.decodes else self.kinds
        tokens = [*example.prompt.tokens, *generated]
        return self.run_reference(tokens, kinds, **example.arguments(len(generated)))

    @torch.inference_mode()
    def run_reference(
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
        found: Tensor = out if isinstance(out, Tensor) else outputs_of(out)
        return (found[0] if found.dim() == 3 else found).float()

    def reference_tokens(self, prompt: Sequence[int] | Example, count: int) -> list[int]:
        """The reference's greedy continuation, recomputed from the start for each token.

        It ends at a placeholder, which a reference that begins anew takes for one more medium.
        """
        example = prompt if isinstance(prompt, Example) else Example(Prompt(tokens=list(prompt)))
        tokens: list[int] = []
        while len(tokens) < count and not self.placeholders & {*tokens[-1:]}:
            tokens.append(int(self.reference_output(example, tokens)[-1].argmax()))
        return tokens


def decodes(record: Architecture) -> bool:
    """Whether a record's model generates tokens: from text, or from the media of its examples."""
    return "text" in record.tasks or record.conformance.examples is not None


def takes(function: Any, argument: str) -> bool:
    return argument in inspect.signature(getattr(function, "forward", function)).parameters


def outputs_of(out: Any) -> Tensor:
    """The logits of a reference's output, or its last hidden states."""
    found: Tensor = out.logits if hasattr(out, "logits") else out.last_hidden_state
    return found


@torch.inference_mode()
def encode(
    engine: Any,
    inputs: Sequence[list[int]],
    kinds: Sequence[list[int]],
    lease: MixtureLease = NOTHING,
) -> Tensor:
    """An encoder's states [T, d] of several texts, or its scores [texts, labels], in float32."""
    model: EncoderModel = engine.runner.model
    hidden, step = engine.runner.hidden(inputs, kinds, [lease] * len(inputs))
    if type(model).scores is not EncoderModel.scores:
        hidden = model.scores(hidden, step)
    return hidden.float().cpu()


def deviation(ours: Tensor, expected: Tensor) -> float:
    """max |ours - expected| divided by the standard deviation of `expected`; inf if not finite."""
    ratio = float((ours - expected).abs().max() / expected.std())
    return ratio if ratio == ratio else float("inf")  # NaN


@contextmanager
def subject(
    plugins: PluginManager,
    name: str,
    *,
    config: Mapping[str, Any] | None = None,
    std: float = STD,
) -> Iterator[Subject]:
    """Build the reference of an architecture's tiny config and save it as a checkpoint.

    Raises PluginError if the record has no reference or no tiny config.
    """
    record: Architecture = plugins.get("architectures", name)
    shape = dict(record.conformance.tiny or {}) if config is None else dict(config)
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
    """Greedy continuations of all prompts in one batch, each with its own adapters."""
    sampling = Sampling(temperature=0, max_tokens=count, ignore_eos=True)
    for i, each in enumerate(prompts):
        prompt = each if isinstance(each, Prompt) else Prompt(tokens=list(each))
        engine.submit(
            TokenRequest(
                id=str(i),
                tokens=prompt.tokens,
                items=prompt.items,
                positions=prompt.positions,
                sampling=sampling,
            ),
            mixtures[i] if mixtures else EMPTY,
        )
    answers: dict[str, list[int]] = {str(i): [] for i in range(len(prompts))}
    for output in engine.drain():
        answers[output.id] += output.tokens
    return [answers[str(i)] for i in range(len(prompts))]
