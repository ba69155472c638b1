"""DRY penalties: equal to their definition, and cheap with many repetitions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tiny.steps import count_lines

from ostro.core.engine import sampler as module
from ostro.core.engine.sampler import Sampler
from ostro.core.engine.sequence import Sequence as TokenSequence
from ostro.core.messages.requests import Dry, Sampling, TokenRequest
from ostro.core.ops import Target

VOCAB = 300


def by_definition(tokens: Sequence[int], dry: Dry) -> dict[int, float]:
    """Every earlier occurrence of the last token is extended backwards, one after the other."""
    tokens = tokens[-dry.window :] if dry.window else tokens
    breakers, longest = set(dry.breakers), dict[int, int]()
    if not tokens or tokens[-1] in breakers:
        return {}
    end = len(tokens) - 1
    for j in range(end):
        if tokens[j] != tokens[end] or tokens[j + 1] in breakers:
            continue
        match = 1
        while match <= j and tokens[j - match] == tokens[end - match] not in breakers:
            match += 1
        longest[tokens[j + 1]] = max(longest.get(tokens[j + 1], 0), match)
    return {
        token: min(dry.multiplier * dry.base ** min(match - dry.allowed_length, 100), 1e4)
        for token, match in longest.items()
        if match >= dry.allowed_length
    }


def sampler_of(rows: int = 8) -> Sampler:
    target = Target(device=torch.device("cpu"), dtype=torch.float32)
    return Sampler(rows, VOCAB, target, frozenset({2}))


def sequence_of(tokens: Sequence[int], rules: Sampling, row: int = 0) -> TokenSequence:
    request = TokenRequest(id=str(row), tokens=list(tokens), sampling=rules)
    sequence = TokenSequence(
        request, 0, arrival=0, seed=0, root=b"", limit=9, tokens=list(tokens), prompt=len(tokens)
    )
    sequence.row = row
    return sequence


def added(sampler: Sampler, sequence: TokenSequence) -> dict[int, float]:
    """The additions of the sampler to each logit of a row of zeros."""
    rules, rows = [sequence.request.sampling], torch.tensor([sequence.row])
    bent = sampler.apply_penalties(torch.zeros(1, VOCAB), [sequence], rules, rows)[0]
    return {i: value for i, value in enumerate(bent.tolist()) if value}


def texts(seed: int) -> list[int]:
    """Random, periodic, nearly periodic and constant sequences of tokens."""
    draw = random.Random(seed)
    size, vocab = draw.randrange(1, 400), draw.choice((1, 2, 3, 10, VOCAB))
    tokens = [draw.randrange(vocab) for _ in range(size)]
    if seed % 3:
        period = draw.randrange(1, 40)
        tokens = [tokens[i % min(period, size)] for i in range(size)]
    if seed % 3 == 2:
        for _ in range(size // 20):
            tokens[draw.randrange(size)] = draw.randrange(VOCAB)
    return tokens


@pytest.mark.parametrize("seed", range(60))
def test_penalties_are_those_of_the_definition(seed: int) -> None:
    draw, tokens = random.Random(seed), texts(seed)
    dry = Dry(
        multiplier=draw.choice((1e-4, 0.8, 50.0)),
        base=draw.choice((1.0, 1.05, 1.75)),
        allowed_length=draw.choice((1, 2, 3, 20, 1000)),
        window=draw.choice((0, 0, 1, 2, 17, 300)),
        breakers=tuple(draw.choices(tokens, k=draw.choice((0, 0, 1, 2)))),
    )
    sampler = sampler_of()
    sequence = sequence_of(tokens, Sampling(dry=dry))
    sampler.add(sequence)
    for _ in range(30):
        expected = {token: -amount for token, amount in by_definition(tokens, dry).items()}
        assert added(sampler, sequence) == pytest.approx(expected, rel=1e-6)
        tokens.append(draw.choice(tokens) if draw.random() < 0.5 else tokens[-len(tokens) // 2])
        sequence.tokens.append(tokens[-1])


def test_many_equal_tokens_cost_no_more_lines_per_step() -> None:
    rules, lines = Sampling(dry=Dry(multiplier=1e-4, base=1.0)), list[int]()
    for count in (1000, 30_000):
        sampler, sequence = sampler_of(), sequence_of([260] * count, rules)
        sampler.add(sequence)
        sampler(torch.zeros(1, VOCAB), [sequence])  # the first step makes room for more tokens
        sequence.tokens.append(260)
        lines.append(count_lines(lambda: sampler(torch.zeros(1, VOCAB), [sequence])))  # noqa: B023
    assert lines[0] == lines[1]


def test_biases_are_sent_when_a_row_is_added_and_not_in_every_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = list[int]()
    to_device = module.to_device

    def count(values: Sequence[Any], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        sent.append(len(values))
        return to_device(values, dtype, device)

    monkeypatch.setattr(module, "to_device", count)
    sampler = sampler_of()
    rules = Sampling(logit_bias={i: i / 4 for i in range(VOCAB)}, temperature=0, min_tokens=1)
    sequences = [sequence_of([5, 6], rules, row) for row in range(8)]
    for sequence in sequences:
        sampler.add(sequence)
    assert sum(sent) > 8 * VOCAB
    sent.clear()
    drawn = sampler(torch.zeros(8, VOCAB), sequences).wait()[0]
    assert drawn == [VOCAB - 1] * 8
    assert sum(sent) < 100


def test_biases_penalties_and_bans_of_one_token_add_up() -> None:
    rules = Sampling(
        logit_bias={7: 3.0, 2: 50.0, 9: 1.0},
        dry=Dry(multiplier=2.0, base=1.0, allowed_length=1),
        min_tokens=1,
        stop_ids=(11,),
    )
    sampler, sequence = sampler_of(), sequence_of([7, 8, 7, 7], rules)
    sampler.add(sequence)
    ban = float("-inf")
    assert added(sampler, sequence) == {7: 1.0, 8: -2.0, 9: 1.0, 2: ban, 11: ban}
    sequence.tokens.append(8)
    assert added(sampler, sequence) == {7: 1.0, 9: 1.0, 2: 50.0}


def test_a_reused_row_gets_the_rules_of_its_next_sequence() -> None:
    sampler = sampler_of()
    rules = Sampling(logit_bias={7: 3.0}, dry=Dry(multiplier=2.0), min_tokens=4)
    sampler.add(sequence_of([5, 6, 5, 6], rules))
    plain = sequence_of([5, 6, 5, 6], Sampling())
    sampler.add(plain)
    assert added(sampler, plain) == {}
