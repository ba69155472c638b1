"""Prompt lookup: its proposals, and its answers on a model that copies."""

from __future__ import annotations

import random

import pytest

from ostro.core.engine.speculation import DraftRequest
from ostro.plugins.speculation.ngram.proposer import NgramProposer


def propose(proposer: NgramProposer, tokens: list[int], count: int = 4, started: bool = False):
    [found] = proposer.propose([DraftRequest(0, tokens, count, started)])
    return found


def by_definition(tokens: list[int], count: int) -> list[int]:
    """What followed the last earlier occurrence of the last 4, 3 or 2 tokens."""
    for size in (4, 3, 2):
        for at in range(len(tokens) - 1, size - 1, -1):
            if size <= len(tokens) and tokens[at - size : at] == tokens[-size:]:
                return tokens[at : at + count]
    return []


@pytest.mark.parametrize("seed", range(20))
def test_proposals_are_those_of_the_definition(seed: int) -> None:
    draw = random.Random(seed)
    proposer, tokens = NgramProposer(2, 10), [draw.randrange(3) for _ in range(draw.randrange(30))]
    started = True
    for _ in range(60):
        tokens += [draw.randrange(3) for _ in range(draw.randrange(1, 4))]
        if draw.random() < 0.7:
            count = draw.randrange(1, 6)
            wanted = by_definition(tokens, count)
            assert propose(proposer, tokens, count, started) == wanted
            started = False


def test_the_longest_run_decides() -> None:
    tokens = [1, 2, 3, 4, 50, 9, 3, 4, 60, 8, 1, 2, 3, 4]
    assert propose(NgramProposer(1, 99), tokens, 2, True) == [50, 9]


def test_a_new_sequence_forgets_the_last_one_of_its_row() -> None:
    proposer = NgramProposer(1, 99)
    propose(proposer, [1, 2, 3, 1, 2], 4, True)
    assert propose(proposer, [7, 1, 2], 4, True) == []


def test_a_released_row_keeps_no_tokens() -> None:
    proposer = NgramProposer(2, 10)
    tokens = [1, 2, 3, 1, 2]
    assert propose(proposer, tokens, started=True) == [3, 1, 2]
    proposer.release(0)
    assert not proposer.indices[0]
    assert propose(proposer, tokens, started=True) == [3, 1, 2]
