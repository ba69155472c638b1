"""The sampler: draws tokens by the sampling parameters of each row, on the device.

Every running sequence has one row of the sampler's tables. Its parameters are written when it gets
the row and read by index in every step, so that a step sends only row numbers to the device. The
sampler never waits for the device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import torch
from torch import Tensor

from ostro.core.device import DeviceToHostCopy, send, to_device
from ostro.core.engine.processors import Processors
from ostro.core.engine.sequence import Sequence
from ostro.core.messages.outputs import TokenLogprobs
from ostro.core.messages.requests import Sampling
from ostro.core.ops import Op, Target, penalize, sample
from ostro.core.ops.penalize import Penalties
from ostro.core.ops.penalize.dry import DryPenalty
from ostro.core.ops.sample import Draw
from ostro.core.records import LogitsProcessor
from ostro.core.tokenizer.vocabulary import Vocabulary

FLOATS = (
    "temperature",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
"""Fields of `Sampling` with a table of floats."""

BAN = float("-inf")
"""The bias of a token that must not be drawn."""


@dataclass
class SamplerOutput:
    """The tokens [W] that a step drew, as lists; -1 for a row of logits that are not finite.

    If any row needs them: logprobs [W] of these tokens, and ids and values [W][n] of the best
    alternatives.
    """

    tokens: list[int]
    logprobs: list[float] | None = None
    top_ids: list[list[int]] | None = None
    top_values: list[list[float]] | None = None


@dataclass(frozen=True)
class Bias:
    """Additions to the logits of one row: ids [n] int64, values [n] float32, on the device."""

    ids: Tensor
    values: Tensor


class Sampler:
    """Sampling parameters of `rows` rows, over a vocabulary of `vocab` tokens."""

    def __init__(
        self,
        rows: int,
        vocab: int,
        target: Target,
        eos: frozenset[int],
        processors: Iterable[LogitsProcessor] = (),
        read_vocabulary: Callable[[], Vocabulary] | None = None,
        conflicts: Mapping[str, str] | None = None,
    ) -> None:
        self.vocab, self.device, self.eos = vocab, target.device, eos
        self.processors = Processors(
            processors, rows, vocab, target.device, read_vocabulary, conflicts
        )
        self.table = {name: torch.zeros(rows, device=self.device) for name in FLOATS}
        self.top_k = torch.zeros(rows, dtype=torch.int32, device=self.device)
        self.seed = torch.zeros(rows, dtype=torch.int64, device=self.device)
        self.last = torch.zeros(rows, dtype=torch.int64, device=self.device)
        self.rules: list[Sampling] = [Sampling()] * rows
        self.biases: list[Bias | None] = [None] * rows
        self.bans: list[Bias | None] = [None] * rows
        self.dry: list[DryPenalty | None] = [None] * rows
        # [rows, vocab], created with the first request that has penalties: they are large.
        self.counts: Tensor | None = None
        self.seen: Tensor | None = None
        self.draw, self.penalize = Op(sample.KERNELS), Op(penalize.KERNELS)
        self.choices = [op.select(target) for op in (self.draw, self.penalize)]

    def add(self, sequence: Sequence) -> None:
        """Write the parameters of a sequence that just got its row.

        Every table is written: the row still has the values of its previous sequence. The writes
        are queued behind the step in flight, which may still read those; they fill, since an
        assignment of a number waits for the device.
        """
        rules, row = sequence.request.sampling, sequence.row
        self.rules[row] = rules
        for name in FLOATS:
            self.table[name][row].fill_(getattr(rules, name))
        self.processors.add(sequence)
        self.top_k[row].fill_(rules.top_k)
        self.seed[row].fill_(sequence.seed)
        if has_penalties(rules):
            self.count(sequence)
        # min_tokens bans the tokens that would end the sequence.
        ends = rules.stop_ids if rules.ignore_eos else {*rules.stop_ids, *self.eos}
        self.biases[row] = self.bias(rules.logit_bias)
        self.bans[row] = self.bias(dict.fromkeys(ends, BAN)) if rules.min_tokens else None
        self.dry[row] = None
        if rules.dry is not None and has_dry(rules):
            self.dry[row] = DryPenalty(rules.dry, sequence.tokens)

    def bias(self, values: Mapping[int, float]) -> Bias | None:
        """Copy biases by token id to the device; None if there are none."""
        if not values:
            return None
        return Bias(self.send(list(values)), self.send(list(values.values()), torch.float32))

    def count(self, sequence: Sequence) -> None:
        """Count the tokens of a sequence for its penalties."""
        if self.counts is None or self.seen is None:
            shape = (len(self.rules), self.vocab)
            self.counts = torch.zeros(shape, dtype=torch.int32, device=self.device)
            self.seen = torch.zeros(shape, dtype=torch.bool, device=self.device)
        row, tokens = sequence.row, self.send(sequence.tokens)
        # The repetition penalty applies to prompt tokens too, the other two to output alone.
        prompt, output = tokens[: sequence.prompt], tokens[sequence.prompt :]
        self.seen[row].zero_().index_fill_(0, prompt, True)
        self.counts[row].zero_()
        # Not `bincount`: the host would wait for its largest number.
        self.counts[row].scatter_add_(0, output, torch.ones_like(output, dtype=torch.int32))

    def __call__(self, logits: Tensor, sequences: Rows[Sequence]) -> DeviceToHostCopy:
        """Draw from logits [W, V]; return the copy of a `SamplerOutput`.

        There is one row per sequence, and one more for each of its drafts.

        `last` keeps the drawn tokens on the device. Logprobs are computed after processors and
        before penalties, biases and truncation.
        """
        rules = [self.rules[s.row] for s in sequences]
        rows = self.send([s.row for s in sequences])
        logits = self.processors(logits.float(), sequences, self.last)
        wide = max((r.logprobs for r in rules if r.logprobs is not None), default=None)
        raw = None if wide is None else logits.log_softmax(-1)
        logits = self.apply_penalties(logits, sequences, rules, rows)
        drawn = self.draw(logits, self.parameters(sequences, rules, rows))
        # A row that is not finite draws -1. The next step computes it before the host knows.
        tokens = drawn.clamp(min=0)
        # The next step reads its tokens from here, before the host has them.
        self.last[rows] = tokens
        if self.counts is not None:
            # Rows without penalties add 0: their counts may be of an older sequence.
            added = self.send([int(has_penalties(r)) for r in rules], torch.int32)
            self.counts.index_put_((rows, tokens), added, accumulate=True)
        if raw is None or wide is None:
            return DeviceToHostCopy.send(drawn)
        top = raw.topk(max(wide, 1), -1)
        return DeviceToHostCopy.send(
            drawn, raw.gather(1, tokens[:, None])[:, 0], top.indices, top.values
        )

    def send(self, values: Rows[float], dtype: torch.dtype = torch.int64) -> Tensor:
        """Copy values to the device without waiting for it."""
        return to_device(values, dtype, self.device)

    def parameters(self, sequences: Rows[Sequence], rules: Rows[Sampling], rows: Tensor) -> Draw:
        """The parameters of one draw: `rows` of each table."""
        # With the seed, the position makes a draw independent of the batch that it is in. The
        # second and further rows of a sequence are those of its drafts.
        before = Counter[Sequence]()
        positions = list[int]()
        for sequence in sequences:
            positions.append(sequence.drawn + before[sequence])
            before[sequence] += 1
        position = self.send(positions)
        return Draw(
            temperature=self.table["temperature"][rows],
            top_k=self.top_k[rows],
            top_p=self.table["top_p"][rows],
            min_p=self.table["min_p"][rows],
            typical=self.table["typical_p"][rows],
            seed=self.seed[rows],
            position=position,
            greedy=all(r.temperature == 0 for r in rules),
            plain=not any(has_truncation(r) for r in rules),  # sorting the logits is skipped
        )

    def apply_penalties(
        self, logits: Tensor, sequences: Rows[Sequence], rules: Rows[Sampling], rows: Tensor
    ) -> Tensor:
        """Logits with the penalties, biases and bans of each row."""
        sparse = [(i, bias) for i, s in enumerate(sequences) for bias in self.row_biases(s)]
        counted = any(has_penalties(r) for r in rules)
        if not counted and not sparse:
            return logits
        lengths = [len(bias.ids) for _, bias in sparse]
        bias_rows = self.send([i for i, _ in sparse])
        # The kernel writes in place, and logits may be the output of a graph or the input of raw
        # logprobs.
        logits = logits.clone()
        penalized: Tensor = self.penalize(
            logits,
            Penalties(
                counts=self.counts[rows] if counted and self.counts is not None else None,
                seen=self.seen[rows] if counted and self.seen is not None else None,
                repetition=self.table["repetition_penalty"][rows],
                presence=self.table["presence_penalty"][rows],
                frequency=self.table["frequency_penalty"][rows],
                # Without the size, CUDA would wait for the lengths.
                bias_rows=bias_rows.repeat_interleave(self.send(lengths), output_size=sum(lengths)),
                # `cat` needs one tensor at least; without biases `bias_rows` is empty.
                bias_ids=torch.cat([bias.ids for _, bias in sparse] or [bias_rows]),
                bias_values=torch.cat([bias.values for _, bias in sparse] or [bias_rows.float()]),
            ),
        )
        return penalized

    def row_biases(self, sequence: Sequence) -> Iterator[Bias]:
        """The biases of one row: logit_bias, DRY, and bans before min_tokens."""
        row = sequence.row
        if (bias := self.biases[row]) is not None:
            yield bias
        if (dry := self.dry[row]) is not None:
            # All tokens are on the host: the engine has read the steps in flight.
            dry.update(sequence.tokens)
            ids, amounts = (torch.from_numpy(array) for array in dry.penalties())
            if len(ids):
                yield Bias(
                    send(ids, torch.int64, self.device), send(-amounts, torch.float32, self.device)
                )
        if (bans := self.bans[row]) is not None and sequence.drawn < self.rules[row].min_tokens:
            yield bans


def has_penalties(rules: Sampling) -> bool:
    """Whether a penalty needs the counts of tokens."""
    return (
        rules.repetition_penalty != 1 or rules.presence_penalty != 0 or rules.frequency_penalty != 0
    )


def has_dry(rules: Sampling) -> bool:
    """Whether the DRY penalty applies, which reads tokens on the host."""
    return rules.dry is not None and rules.dry.multiplier > 0


def has_truncation(rules: Sampling) -> bool:
    """Whether tokens may be cut from the distribution; greedy rows draw the largest anyway."""
    return rules.temperature > 0 and (
        rules.top_k > 0 or rules.top_p < 1 or rules.min_p > 0 or rules.typical_p < 1
    )


def read_logprobs(drawn: SamplerOutput, sequences: list[Sequence]) -> list[TokenLogprobs | None]:
    """The logprobs of each drawn token, with as many alternatives as its request needs, or None."""
    out: list[TokenLogprobs | None] = [None] * len(sequences)
    if drawn.logprobs is None or drawn.top_ids is None or drawn.top_values is None:
        return out
    for i, sequence in enumerate(sequences):
        wide = sequence.request.sampling.logprobs
        if wide is not None:
            top = tuple(zip(drawn.top_ids[i][:wide], drawn.top_values[i][:wide], strict=True))
            out[i] = TokenLogprobs(drawn.tokens[i], drawn.logprobs[i], top)
    return out
