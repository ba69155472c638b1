"""Checks of decoders: chunked prefill, batches, captured steps, prefix cache, preemption."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ostro.core.messages.prompt import Prompt
from ostro.plugins.conformance.checks import check, decodes
from ostro.plugins.conformance.examples import beginning, longest_span
from ostro.plugins.conformance.golden import Golden
from ostro.plugins.conformance.parity import BAR, Subject, deviation, greedy

RAGGED = (1, 2, 7, 16, 17, 33, 50)
"""Prompt lengths of one batch: below, at and above multiples of the block size."""

ROWS = (1, 7, 16, 23)
"""Chunk sizes. Prompts with media are also cut at every size up to one above the media's."""


@check(decodes)
def chunked_prefill_matches_full_prefill(tiny: Subject) -> None:
    engine = tiny.engine()
    for rows in ROWS:
        assert tiny.off(engine, rows) <= BAR, f"{rows = }"
    example, expected = max(tiny.cases, key=lambda case: longest_span(case[0].prompt))
    for rows in {*range(1, longest_span(example.prompt) + 2)} - {*ROWS}:
        assert deviation(tiny.answer(engine, example, rows), expected) <= BAR, f"{rows = }"


@check(decodes)
def ragged_batches_match_single_sequences(tiny: Subject) -> None:
    prompts = ragged(tiny)
    loaded = tiny.load()
    together = greedy(tiny.engine(loaded, rows=40), prompts, 12)
    assert together == [greedy(tiny.engine(loaded), [prompt], 12)[0] for prompt in prompts]
    for example, generated in zip(tiny.examples, together[len(RAGGED) :], strict=True):
        tokens = generated[
            : 1 if isinstance(tiny.reference, Golden) else comparable(tiny, generated)
        ]
        # One pass of the reference predicts every token from those before it.
        expected = tiny.reference_output(example, tokens[:-1])[-len(tokens) :].argmax(-1)
        assert tokens == expected.tolist()


@check(decodes)
def captured_loop_matches_eager(tiny: Subject) -> None:
    """CUDA graphs on CUDA devices; elsewhere the same loop, with poisoned inputs between steps."""
    prompts, loaded = ragged(tiny), tiny.load()
    expected = greedy(tiny.engine(loaded, rows=40), prompts, 12)
    engine = tiny.engine(loaded, rows=40, replay=True)
    engine.runner.capture()
    assert greedy(engine, prompts, 12) == expected


@check(decodes)
def prefix_cache_hits_do_not_change_outputs(tiny: Subject) -> None:
    loaded = tiny.load()
    for example in tiny.examples:
        engine = tiny.engine(loaded)
        first = greedy(engine, [example.prompt], 12)
        assert greedy(engine, [example.prompt], 12) == first
        assert engine.stats().cached_tokens > 0, "the prefix cache has no hit"


@check(decodes)
def preemption_does_not_change_outputs(tiny: Subject) -> None:
    loaded = tiny.load()
    for prompts in crowds(tiny):
        count = 40 if prompts[0].items else 24
        longest = max(len(prompt.tokens) for prompt in prompts) + count
        crowded = tiny.engine(loaded, blocks=2 * (longest // 16 + 1) + 1)
        assert greedy(crowded, prompts, count) == greedy(tiny.engine(loaded), prompts, count)
        assert crowded.stats().preemptions > 0, "no request was preempted"
        assert crowded.stats().blocks_used == 0


def comparable(tiny: Subject, tokens: Sequence[int]) -> int:
    """How many generated tokens the reference predicts: those up to the first placeholder.

    The reference takes a placeholder before other tokens for one more medium. Golden logits
    predict one token.
    """
    if isinstance(tiny.reference, Golden):
        return 1
    ends = tiny.placeholders
    return next((i for i, token in enumerate(tokens, 1) if token in ends), len(tokens))


def ragged(tiny: Subject) -> list[Prompt]:
    """Prefixes of the first example of the lengths `RAGGED`, and all examples."""
    first = tiny.examples[0].prompt
    return [beginning(first, n) for n in RAGGED] + [example.prompt for example in tiny.examples]


def crowds(tiny: Subject) -> Iterator[Sequence[Prompt]]:
    """Groups of six prompts, of which two fit the cache: text only, then prompts with media."""
    with_media = [example.prompt for example in tiny.examples if example.prompt.items]
    if len(with_media) < len(tiny.examples):
        yield [Prompt(tokens=tiny.prompt[i : i + 30]) for i in range(6)]
    if with_media:
        yield (with_media * 6)[:6]
