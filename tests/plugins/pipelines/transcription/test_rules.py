"""The rules of writing against the logits processors of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import GenerationConfig
from transformers.generation.logits_process import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from ostro.core.engine.processors import AddedRequest
from ostro.core.errors import RequestError
from ostro.pipelines import Vocabulary
from ostro.plugins.pipelines.transcription.rules import Rules

VOCAB, END, TIMES = 90, 30, 40
BANNED, FIRST = [3, 4, 31], [7, END]
ASKED = {"banned": BANNED, "first": FIRST, "timestamps": TIMES, "end": END, "latest": 12}
PROMPT = [31, 32]
BOTH_KINDS = torch.tensor([0.0] * TIMES + [1.5] * (VOCAB - TIMES))


def theirs(latest: int | None) -> Iterator[Any]:
    config = GenerationConfig(eos_token_id=END)
    config.no_timestamps_token_id = TIMES - 1
    config.max_initial_timestamp_index = latest
    begin = len(PROMPT)
    yield SuppressTokensLogitsProcessor(BANNED)
    yield SuppressTokensAtBeginLogitsProcessor(FIRST, begin)
    yield WhisperTimeStampLogitsProcessor(config, begin)


def added(row: int, said: list[int], **asked: Any) -> AddedRequest:
    return AddedRequest(row, {**ASKED, **asked}, PROMPT, said)


@pytest.mark.parametrize("latest", [12, None])
@pytest.mark.parametrize("seed", range(3))
def test_walks_are_those_of_the_reference(latest: int | None, seed: int) -> None:
    """Three rows in one table draw at random; one is preempted and added again on the way."""
    generator = torch.Generator().manual_seed(seed)
    rules = Rules(5, Vocabulary(VOCAB), torch.device("cpu"))
    rows, said = torch.tensor([4, 0, 2]), [list[int](), list[int](), list[int]()]
    rules.update([added(row, [], latest=latest) for row in rows.tolist()], [], ())
    processors, drawn = list(theirs(latest)), torch.tensor([TIMES, 0, 50])
    seen = set[bool]()
    for count in range(40):
        logits = torch.randn(3, VOCAB, generator=generator) * 2 + BOTH_KINDS
        ours = rules.apply(logits, rows, drawn)
        for i in range(3):
            expected = logits[i : i + 1].clone()
            for processor in processors:
                expected = processor(torch.tensor([PROMPT + said[i]]), expected)
            assert torch.equal(ours[i], expected[0]), said[i]
        drawn = torch.multinomial(ours.softmax(-1), 1, generator=generator)[:, 0]
        seen |= set((drawn >= TIMES).tolist())
        for mine, token in zip(said, drawn.tolist(), strict=True):
            mine.append(token)
        if count == 17:
            rules.update([added(0, said[1], latest=latest)], [0], ())
    assert seen == {True, False}


def test_without_times_only_bans_remain() -> None:
    rules = Rules(2, Vocabulary(VOCAB), torch.device("cpu"))
    rules.update([added(1, [], timestamps=None)], [], ())
    rows, logits = torch.tensor([1]), torch.zeros(1, VOCAB)
    first = rules.apply(logits, rows, torch.tensor([0]))
    assert (first == -torch.inf).nonzero()[:, 1].tolist() == sorted(BANNED + FIRST)
    then = rules.apply(logits, rows, torch.tensor([50]))
    assert (then == -torch.inf).nonzero()[:, 1].tolist() == sorted(BANNED)


def test_only_restricts_the_tokens() -> None:
    rules = Rules(1, Vocabulary(VOCAB), torch.device("cpu"))
    rules.update([added(0, [], only=[5, 6], timestamps=None)], [], ())
    left = rules.apply(torch.zeros(1, VOCAB), torch.tensor([0]), torch.tensor([0]))
    assert left.isfinite().nonzero()[:, 1].tolist() == [5, 6]


def test_a_row_keeps_no_state_of_its_previous_sequence() -> None:
    rules, rows = Rules(1, Vocabulary(VOCAB), torch.device("cpu")), torch.tensor([0])
    rules.update([added(0, [TIMES + 20, 5, TIMES + 30])], [], ())
    rules.update([added(0, [], banned=[])], [0], ())
    rules.apply(torch.zeros(1, VOCAB), rows, torch.tensor([TIMES]))
    after = rules.apply(torch.zeros(1, VOCAB), rows, torch.tensor([TIMES]))
    assert after[0, BANNED[0]] == 0 and after[0, TIMES + 1] == -torch.inf


@pytest.mark.parametrize(
    "asked", [{"banned": [VOCAB]}, {"only": [-1]}, {"timestamps": "x"}], ids=str
)
def test_what_no_vocabulary_has_is_refused(asked: dict[str, Any]) -> None:
    Rules.check(ASKED, VOCAB)
    with pytest.raises(RequestError, match="transcription"):
        Rules.check({**ASKED, **asked}, VOCAB)
