"""The sampler on given logits: which tokens may be drawn how often, by each rule and in any batch.

`likelihood` computes the distribution of the next token from the definition of each rule, one row
at a time, from the tokens that the host knows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tiny.processors import LOG
from torch import Tensor

from ostro.core.engine.sampler import Sampler, SamplerOutput
from ostro.core.engine.sequence import Sequence as TokenSequence
from ostro.core.messages.requests import Dry, Sampling, TokenRequest
from ostro.core.ops import Target
from ostro.core.records import LogitsProcessor

VOCAB = 12
EOS = 2
BAN = -math.inf
CPU = Target(device=torch.device("cpu"), dtype=torch.float32)


def sampler_of(rows: int = 8, *processors: LogitsProcessor) -> Sampler:
    LOG.clear()
    return Sampler(rows, VOCAB, CPU, frozenset({EOS}), processors)


def add_row(
    sampler: Sampler,
    row: int,
    prompt: Sequence[int] = (1, 3),
    output: Sequence[int] = (),
    seed: int = 0,
    **rules: Any,
) -> TokenSequence:
    """A sequence in a row of the sampler."""
    request = TokenRequest(id=str(row), tokens=list(prompt), sampling=Sampling(**rules))
    sequence = TokenSequence(
        request,
        0,
        arrival=0,
        seed=seed,
        root=b"",
        limit=1000,
        tokens=[*prompt, *output],
        prompt=len(prompt),
    )
    sequence.row = row
    sampler.add(sequence)
    return sequence


def draw(sampler: Sampler, logits: Tensor, *sequences: TokenSequence) -> SamplerOutput:
    """One step; the drawn tokens are appended."""
    drawn = SamplerOutput(*sampler(logits, sequences).wait())
    for sequence, token in zip(sequences, drawn.tokens, strict=True):
        sequence.tokens.append(token)
    return drawn


def noise(seed: int, rows: int = 1, size: float = 2.0) -> Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * size


def adjusted(logits: Tensor, sequence: TokenSequence) -> list[float]:
    """Logits [V] after penalties, biases and bans."""
    rules, values = sequence.request.sampling, logits.double().tolist()
    prompt, output = sequence.tokens[: sequence.prompt], sequence.tokens[sequence.prompt :]
    for token in {*prompt, *output}:
        positive, r = values[token] > 0, rules.repetition_penalty
        values[token] = values[token] / r if positive else values[token] * r
    for token in set(output):
        values[token] -= rules.presence_penalty + rules.frequency_penalty * output.count(token)
    for token, bias in rules.logit_bias.items():
        values[token] += bias
    for token, amount in repeats(sequence.tokens, rules.dry or Dry()).items():
        values[token] -= amount
    if len(output) < rules.min_tokens:
        ends = set(rules.stop_ids) | (set() if rules.ignore_eos else {EOS})
        values = [BAN if token in ends else value for token, value in enumerate(values)]
    return values


def repeats(tokens: Sequence[int], dry: Dry) -> dict[int, float]:
    """DRY: every suffix is compared with the tokens before every earlier position."""
    tokens = tokens[-dry.window :] if dry.window else tokens
    found = dict[int, float]()
    for end in range(1, len(tokens)):
        longest = 0
        for size in range(1, end + 1):
            same = tokens[end - size : end] == tokens[-size:]
            if same and not set(dry.breakers) & set(tokens[-size:]):
                longest = size
        token = tokens[end]
        if longest >= dry.allowed_length and token not in dry.breakers and dry.multiplier:
            amount = dry.multiplier * dry.base ** (longest - dry.allowed_length)
            found[token] = max(found.get(token, 0.0), amount)
    return found


def likelihood(logits: Tensor, sequence: TokenSequence) -> Tensor:
    """The distribution [V] float64 that the next token is drawn from."""
    rules = sequence.request.sampling
    values = torch.tensor(adjusted(logits, sequence), dtype=torch.float64)
    if rules.temperature == 0:
        return torch.nn.functional.one_hot(values.argmax(), VOCAB).double()
    p = (values / rules.temperature).softmax(-1)
    if rules.min_p:
        p = renormalize(p, p >= rules.min_p * p.max())
    if rules.top_k:
        p = renormalize(p, p >= p.sort(descending=True).values[rules.top_k - 1])
    if rules.typical_p < 1:
        surprise = -p.log()
        entropy = -(p * p.clamp(min=1e-300).log()).sum()
        p = renormalize(p, nucleus(-(surprise - entropy).abs(), p, rules.typical_p))
    if rules.top_p < 1:
        p = renormalize(p, nucleus(p, p, rules.top_p))
    return p


def nucleus(score: Tensor, p: Tensor, limit: float) -> Tensor:
    """The tokens for which the sum of all better ones is below the limit."""
    betters = torch.stack([p[score > own].sum() for own in score])
    return betters < limit


def renormalize(p: Tensor, mask: Tensor) -> Tensor:
    p = p * mask
    return p / p.sum()


def distance(counts: Tensor, expected: Tensor) -> float:
    """Chi-square of counted tokens as a normal deviate (Wilson-Hilferty)."""
    assert not counts[expected == 0].any(), "a token was drawn that the rules exclude"
    mean = expected[expected > 0] * counts.sum()
    chi = float(((counts[expected > 0] - mean) ** 2 / mean).sum())
    third = 2 / (9 * max(len(mean) - 1, 1))
    return ((chi / max(len(mean) - 1, 1)) ** (1 / 3) - (1 - third)) / math.sqrt(third)


RULES: dict[str, dict[str, Any]] = {
    "neutral": {},
    "cold": {"temperature": 0.5},
    "hot": {"temperature": 3.0},
    "top_k": {"top_k": 4},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.2},
    "typical_p": {"typical_p": 0.5},
    "all truncations": {"temperature": 1.5, "top_k": 9, "top_p": 0.9, "min_p": 0.01},
    "repetition": {"repetition_penalty": 2.0},
    "repetition that rewards": {"repetition_penalty": 0.5},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 0.8},
    "logit_bias": {"logit_bias": {3: 2.0, 5: -4.0, 7: -100.0}},
    "min_tokens": {"min_tokens": 8, "stop_ids": (4,)},
    "min_tokens and ignore_eos": {"min_tokens": 8, "stop_ids": (4,), "ignore_eos": True},
    "dry": {"dry": Dry(multiplier=1.0, base=1.5, allowed_length=1)},
    "dry with breakers": {"dry": Dry(multiplier=3.0, allowed_length=1, breakers=(5,))},
    "dry in a window": {"dry": Dry(multiplier=3.0, allowed_length=1, window=4)},
    "everything": {
        "temperature": 1.3,
        "top_k": 10,
        "top_p": 0.95,
        "typical_p": 0.95,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "logit_bias": {1: 3.0},
        "dry": Dry(multiplier=0.5, allowed_length=1),
        "min_tokens": 20,
    },
}
PROMPT, OUTPUT = (1, 5, 6, 7, 5), (6, 9, 5, 6)
"""Token 6 is twice in the output and is in the prompt; 5 6 is repeated, 9 and 7 have followed."""


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", RULES)
def test_tokens_are_drawn_as_often_as_their_probability(name: str) -> None:
    rows, logits = 400, noise(1, size=1.0)
    counts, sampler = torch.zeros(VOCAB), sampler_of(rows)
    sequences = [add_row(sampler, i, PROMPT, OUTPUT, seed=i, **RULES[name]) for i in range(rows)]
    expected = likelihood(logits[0], sequences[0])
    for step in range(5):
        for i, sequence in enumerate(sequences):
            sequence.seed = step * rows + i
            sequence.tokens = [*PROMPT, *OUTPUT]
            sampler.add(sequence)
        drawn = draw(sampler, logits.expand(rows, -1), *sequences)
        counts += torch.bincount(torch.tensor(drawn.tokens), minlength=VOCAB)
    assert distance(counts, expected) < 3.5
    other = RULES["neutral" if name != "neutral" else "hot"]
    wrong = likelihood(logits[0], add_row(sampler, 0, PROMPT, OUTPUT, **other))
    assert name == "neutral" or float((wrong - expected).abs().sum()) > 0.05


def test_temperature_zero_draws_the_first_of_the_largest_logits() -> None:
    sampler, logits = sampler_of(), torch.zeros(3, VOCAB)
    logits[0, [4, 9]] = 1.0
    logits[1, 11] = 1e-3
    rows = [add_row(sampler, i, temperature=0, top_k=3, seed=i) for i in range(3)]
    assert draw(sampler, logits, *rows).tokens == [4, 11, 0]


@pytest.mark.parametrize("name", RULES)
def test_greedy_tokens_follow_the_penalties_from_step_to_step(name: str) -> None:
    """Tokens drawn on the device count in the next step."""
    sampler = sampler_of()
    sequence = add_row(sampler, 3, PROMPT, OUTPUT, **{**RULES[name], "temperature": 0})
    for step in range(25):
        logits = noise(step, size=0.5)
        [token] = draw(sampler, logits, sequence).tokens
        known = sequence.tokens.pop()
        assert token == known == int(likelihood(logits[0], sequence).argmax()), f"{step = }"
        sequence.tokens.append(token)


def test_rows_of_one_step_keep_their_own_rules() -> None:
    """Each row draws the same token as alone."""
    chosen = [{**rules, "seed": i} for i, rules in enumerate(RULES.values())]
    chosen.append({"temperature": 0})

    def tokens(numbers: Sequence[int], rows: Sequence[int]) -> dict[int, list[int]]:
        sampler = sampler_of(64)
        made = {}
        for number, row in zip(numbers, rows, strict=True):
            rules = dict(chosen[number])
            made[number] = add_row(sampler, row, PROMPT, OUTPUT, rules.pop("seed", 5), **rules)
        for step in range(6):
            logits = noise(step).expand(len(made), -1)
            draw(sampler, logits, *made.values())
        start = len(PROMPT) + len(OUTPUT)
        return {number: sequence.tokens[start:] for number, sequence in made.items()}

    count = len(chosen)
    together = tokens(range(count), range(count))
    backwards = tokens(range(count)[::-1], range(40, 40 + count))
    alone = {number: tokens([number], [7])[number] for number in range(count)}
    assert together == backwards == alone


def test_another_seed_or_position_draws_another_token() -> None:
    sampler, logits = sampler_of(64), torch.zeros(64, VOCAB)
    rows = [add_row(sampler, i, seed=i) for i in range(64)]
    by_seed = draw(sampler, logits, *rows).tokens
    by_position = [draw(sampler, logits[:1], rows[0]).tokens[0] for _ in range(64)]
    assert len(set(by_seed)) == len(set(by_position)) == VOCAB


def test_a_sequence_draws_by_its_position_and_not_by_the_number_of_steps() -> None:
    """A preempted sequence continues where it stopped."""
    logits, sampler = torch.zeros(1, VOCAB), sampler_of()
    straight = add_row(sampler, 0, seed=11)
    for _ in range(10):
        draw(sampler, logits, straight)
    resumed = add_row(sampler, 5, output=straight.tokens[2:7], seed=11)
    for _ in range(5):
        draw(sampler, logits, resumed)
    assert resumed.tokens == straight.tokens


def test_a_reused_row_has_no_state_of_its_former_sequence() -> None:
    """No rules, biases, bans or counted tokens."""
    logits, sampler = torch.zeros(1, VOCAB), sampler_of(1)
    logits[0, 5] = 1.0
    rules = {**RULES["everything"], "temperature": 0, "logit_bias": {7: 50.0}}
    draw(sampler, logits, add_row(sampler, 0, [5] * 9, [5] * 9, **rules))
    assert draw(sampler, logits, add_row(sampler, 0, temperature=0)).tokens == [5]
    counted = add_row(sampler, 0, [1], temperature=0, frequency_penalty=0.4)
    assert [draw(sampler, logits, counted).tokens[0] for _ in range(4)] == [5, 5, 5, 0]
    logits[0, 4] = 0.9
    repeated = add_row(sampler, 0, [1], temperature=0, repetition_penalty=2.0)
    assert [draw(sampler, logits, repeated).tokens[0] for _ in range(2)] == [5, 4]


def test_eos_and_stop_ids_are_drawn_again_from_min_tokens_on() -> None:
    sampler, logits = sampler_of(), torch.zeros(1, VOCAB)
    logits[0, EOS], logits[0, 4] = 9.0, 8.0
    both = add_row(sampler, 0, temperature=0, min_tokens=2, stop_ids=(4,))
    assert [draw(sampler, logits, both).tokens[0] for _ in range(3)] == [0, 0, EOS]
    ignored = add_row(sampler, 1, temperature=0, min_tokens=2, stop_ids=(4,), ignore_eos=True)
    assert draw(sampler, logits, ignored).tokens == [EOS]


# Log probabilities


def test_log_probabilities_are_those_before_penalties_and_temperature() -> None:
    sampler, logits = sampler_of(), noise(3, rows=3)
    rows = [
        add_row(sampler, 0, temperature=0.3, top_k=1, logit_bias={4: 50.0}, logprobs=2),
        add_row(sampler, 1, temperature=0, logprobs=4),
        add_row(sampler, 2, temperature=0),
    ]
    drawn = draw(sampler, logits, *rows)
    assert drawn.tokens[0] == 4 and drawn.logprobs and drawn.top_ids and drawn.top_values
    plain = logits.log_softmax(-1)
    best = plain.sort(-1, descending=True)
    for i, token in enumerate(drawn.tokens):
        assert drawn.logprobs[i] == pytest.approx(float(plain[i, token]))
        assert drawn.top_ids[i] == best.indices[i, :4].tolist(), "as many as any row needs"
        assert drawn.top_values[i] == pytest.approx(best.values[i, :4].tolist())


def test_logprobs_are_computed_only_if_a_row_needs_them() -> None:
    sampler, logits = sampler_of(), noise(3, rows=2)
    plain, asks = add_row(sampler, 0), add_row(sampler, 1, logprobs=0)
    assert draw(sampler, logits[:1], plain) == SamplerOutput(plain.tokens[-1:])
    assert draw(sampler, logits, plain, asks).logprobs is not None


def test_input_logits_are_not_modified() -> None:
    """They may be the output of a captured step."""
    sampler, logits = sampler_of(), noise(4)
    before = logits.clone()
    draw(sampler, logits, add_row(sampler, 0, PROMPT, OUTPUT, **RULES["everything"]))
    assert torch.equal(logits, before)


def test_drawn_tokens_stay_on_the_device_by_row() -> None:
    sampler, logits = sampler_of(), noise(5, rows=2)
    tokens = draw(sampler, logits, add_row(sampler, 6), add_row(sampler, 1)).tokens
    assert sampler.last.tolist() == [0, tokens[1], 0, 0, 0, 0, tokens[0], 0]


# Logits processors


def record(name: str, kind: str, **fields: Any) -> LogitsProcessor:
    return LogitsProcessor(name=name, processor=f"tiny.processors:{kind}", **fields)


def test_a_processor_is_called_once_per_step_with_all_its_rows() -> None:
    sampler = sampler_of(8, record("recorder", "ApplyRecorder"), record("other", "ApplyRecorder"))
    asks = {"processors": {"recorder": 7}}
    rows = [add_row(sampler, 5, **asks), add_row(sampler, 0), add_row(sampler, 2, **asks)]
    LOG.clear()
    logits = noise(6, rows=3)
    first = draw(sampler, logits, *rows).tokens
    assert LOG == [("applied", 5, ()), ("applied", 2, ())]
    LOG.clear()
    draw(sampler, logits, *rows)
    assert LOG == [("applied", 5, (first[0],)), ("applied", 2, (first[2],))]
    LOG.clear()
    draw(sampler, logits[:1], rows[1])
    assert not LOG


def test_a_processor_changes_the_logits_of_its_rows_alone() -> None:
    sampler, logits = sampler_of(8, record("favour", "Favour")), noise(7, rows=3)
    rules: dict[str, Any] = {"temperature": 0, "logprobs": 1}
    rows = [add_row(sampler, i, **rules) for i in range(3)]
    plain = draw(sampler, logits, *rows)
    rows[1] = add_row(sampler, 1, processors={"favour": 1}, **rules)
    drawn = draw(sampler, logits, *rows)
    assert drawn.tokens == [plain.tokens[0], 5, plain.tokens[2]] != plain.tokens
    assert drawn.logprobs and plain.logprobs and drawn.logprobs[1] > plain.logprobs[1]
    assert drawn.logprobs[::2] == plain.logprobs[::2]


def test_a_processor_is_updated_with_added_and_removed_rows() -> None:
    """Added rows have the tokens drawn so far; a reused row is removed and added."""
    sampler = sampler_of(4, record("recorder", "ApplyRecorder"))
    asks = {"processors": {"recorder": 7}}
    add_row(sampler, 2, output=(8, 9), **asks)
    assert LOG == [("added", 2, (8, 9))]
    add_row(sampler, 2, output=(4,), **asks)
    assert LOG[1:] == [("removed", 2, ()), ("added", 2, (4,))]
    add_row(sampler, 2)
    assert LOG[3:] == [("removed", 2, ())]
    add_row(sampler, 2)
    assert LOG[4:] == []


def test_a_processor_is_created_at_first_use() -> None:
    sampler = sampler_of(4, record("recorder", "ApplyRecorder"))
    add_row(sampler, 0)
    assert not sampler.processors.created
    add_row(sampler, 1, processors={"recorder": 7})
    made = sampler.processors.created["recorder"]
    add_row(sampler, 2, processors={"recorder": 7})
    assert sampler.processors.created == {"recorder": made}


def test_a_processor_with_host_ids_gets_the_last_tokens() -> None:
    sampler = sampler_of(4, record("recorder", "ApplyRecorder", host_ids=True))
    rows = [add_row(sampler, i, [i, i + 4], processors={"recorder": 7}) for i in (3, 1)]
    LOG.clear()
    draw(sampler, noise(8, rows=2), *rows)
    assert LOG == [("applied", 3, (7,)), ("applied", 1, (5,))]
