"""The tests of an encoder, from its record alone.

class TestBert(EncoderTests):
    name = "bert"
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ostro.core.nn import Embedding, Linear
from ostro.core.plugins import PluginManager
from ostro.core.records import resolve
from ostro.core.testing.architecture import Case, Nudge
from ostro.core.testing.parity import BAR, RED, STD, Subject, deviation, subject

LENGTHS = (1, 2, 7, 7, 7, 33, 50)
"""Of one batch: neighbours of equal length, and others."""


class EncoderTests(Case):
    """Parity, mutants, batching and deltas of the encoder called `name`.

    What is compared are the last hidden states, or the scores of models that make some.
    """

    def test_states_equal_the_reference(self, tiny: Subject) -> None:
        tokens, kinds = example(tiny)
        ours = encode(tiny.engine(), [tokens], [kinds])
        assert deviation(ours, truth(tiny, tokens, kinds)) <= BAR

    def test_a_batch_says_what_each_says_alone(self, tiny: Subject) -> None:
        tokens, kinds = example(tiny)
        engine = tiny.engine()
        cut = [(tokens[:n], kinds[:n]) for n in LENGTHS]
        together = encode(engine, *(list(part) for part in zip(*cut, strict=True)))
        alone = torch.cat([encode(engine, [t], [k]) for t, k in cut])
        assert deviation(together, alone) <= BAR
        assert deviation(together, torch.cat([truth(tiny, t, k) for t, k in cut])) <= BAR

    def test_every_mutant_turns_parity_red(self, tiny: Subject, plugins: PluginManager) -> None:
        assert tiny.record.mutants is not None, f"{self.name} declares no mutants"
        green = []
        for mutant in resolve(tiny.record.mutants)():
            with subject(plugins, self.name, std=mutant.std or STD) as made:
                loaded = made.load()
                mutant.apply(loaded.model)
                tokens, kinds = example(made)
                ours = encode(made.engine(loaded), [tokens], [kinds])
                if deviation(ours, truth(made, tokens, kinds)) < RED:
                    green.append(mutant.name)
        assert not green, f"the parity test does not notice: {', '.join(green)}"

    def test_a_delta_on_any_linear_changes_the_states(self, tiny: Subject) -> None:
        loaded = tiny.load()
        engine, (tokens, kinds) = tiny.engine(loaded), example(tiny)
        before, silent = encode(engine, [tokens], [kinds]), []
        for path, module in loaded.model.named_modules():
            if isinstance(module, Linear | Embedding):
                module.deltas.append(Nudge())
                if torch.equal(encode(engine, [tokens], [kinds]), before):
                    silent.append(path)
                module.deltas.clear()
        assert not silent, f"a delta is not heard at {', '.join(silent)}"


def example(tiny: Subject) -> tuple[list[int], list[int]]:
    """Tokens, and the kind of text of each: the last third is another."""
    tokens = tiny.prompt
    return tokens, [int(i > 2 * len(tokens) // 3) for i in range(len(tokens))]


@torch.inference_mode()
def encode(engine: Any, inputs: Sequence[list[int]], kinds: Sequence[list[int]]) -> Tensor:
    hidden, step = engine.runner.hidden(inputs, kinds)
    scores = getattr(engine.runner.model, "scores", None)
    found: Tensor = hidden if scores is None else scores(hidden, step)
    return found.float()


@torch.inference_mode()
def truth(tiny: Subject, tokens: list[int], kinds: list[int]) -> Tensor:
    """The reference's states [T, d], or its scores [1, labels]."""
    out = tiny.reference(torch.tensor([tokens]), token_type_ids=torch.tensor([kinds]))
    found: Tensor = out.logits if "logits" in out else out.last_hidden_state[0]
    return found.float()
