"""Tests of vision models in addition to the conformance kit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from ostro import Prompt
from ostro.core.engine.engine import Engine
from ostro.core.messages.outputs import TokenOutput
from ostro.core.messages.requests import Sampling, TokenRequest
from ostro.plugins.conformance import ArchitectureTests
from ostro.plugins.conformance.examples import Example
from ostro.plugins.conformance.parity import RED, Subject, deviation, greedy

SEQUELS = ((0,), (0, 0), (1, 0))
"""The images of consecutive prompts, by index."""


class ImageTests(ArchitectureTests):
    prompted: ClassVar[Callable[..., Prompt]]
    """`prompted(inputs, images)` of a family's examples, as a staticmethod."""

    def test_a_hit_in_the_prefix_cache_needs_the_same_image(self, tiny: Subject) -> None:
        engine = tiny.engine()
        prompt, other = (self.prompted(tiny.inputs, (i,)) for i in (0, 1))
        [first] = run(engine, [prompt])
        [again] = run(engine, [prompt])
        assert again.tokens == first.tokens and again.cached == (len(prompt.tokens) - 1) // 16 * 16
        assert other.tokens == prompt.tokens
        [changed] = run(engine, [other])
        assert changed.cached == prompt.items[0].first // 16 * 16
        assert changed.tokens == greedy(tiny.engine(), [other], 8)[0]
        said = [tiny.answer(engine, Example(each)) for each in (prompt, other)]
        assert deviation(*said) > RED

    def test_an_image_is_encoded_once(self, tiny: Subject) -> None:
        """Images are shared by consecutive prompts, and repeated within one prompt."""
        engine, prompts = tiny.engine(), [self.prompted(tiny.inputs, seen) for seen in SEQUELS]
        counted = count_media(engine)
        said = [greedy(engine, [prompt], 8)[0] for prompt in prompts]
        assert counted == [1, 1]
        assert said == [greedy(tiny.engine(), [prompt], 8)[0] for prompt in prompts]


def count_media(engine: Engine) -> list[int]:
    """Return a list that records the number of media of each `encode` call."""
    model, counted = engine.runner.model, list[int]()
    encode = model.encode

    def count(media: Any, step: Any) -> Any:
        counted.append(len(media))
        return encode(media, step)

    model.encode = count  # type: ignore[method-assign]
    return counted


def run(engine: Engine, prompts: Sequence[Prompt], count: int = 8) -> list[TokenOutput]:
    """Greedy answers to all prompts in one batch; the outputs of each prompt are merged."""
    rules = Sampling(temperature=0, max_tokens=count, ignore_eos=True)
    for i, prompt in enumerate(prompts):
        request = TokenRequest(
            id=str(i),
            tokens=prompt.tokens,
            items=prompt.items,
            positions=prompt.positions,
            sampling=rules,
        )
        engine.submit(request)
    answers = {str(i): TokenOutput(id=str(i)) for i in range(len(prompts))}
    for output in engine.drain():
        whole = answers[output.id]
        whole.tokens = [*whole.tokens, *output.tokens]
        whole.cached += output.cached
    return list(answers.values())
