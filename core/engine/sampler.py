"""The sampler: per-row rules on the device, one row of its tables per running sequence.

Rules are written when a sequence gets its row and read by index in every step, so a step sends the
device nothing but row numbers. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import torch
from torch import Tensor

from ostro.core.device import DeviceToHostCopy, send, to_device
from ostro.core.engine.dry import DryPenalty
from ostro.core.engine.processors import Processors
from ostro.core.engine.request import Sampling
from ostro.core.engine.sequence import Sequence
from ostro.core.ops import Op, Target, penalize, sample
from ostro.core.ops.penalize import Penalties
from ostro.core.ops.sample import Draw
from ostro.core.records import LogitsProcessor

FLOATS = ("temperature", "top_p", "min_p", "typical", "repetition", "presence", "frequency")
BAN = float("-inf")


@dataclass
class SamplerOutput:
    """What a step drew, as lists: tokens [W]; where a row asked for it, logprobs of the drawn
    tokens [W] and the best alternatives, ids and values [W][n]."""

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
    """Tables of `rows` rows over a vocabulary of `vocab` tokens on one device."""

    def __init__(
        self,
        rows: int,
        vocab: int,
        target: Target,
        eos: frozenset[int],
        processors: Iterable[LogitsProcessor] = (),
    ) -> None:
        self.vocab, self.device, self.eos = vocab, target.device, eos
        self.processors = Processors(processors, rows, vocab, target.device)
        self.table = {name: torch.zeros(rows, device=self.device) for name in FLOATS}
        self.top_k = torch.zeros(rows, dtype=torch.int32, device=self.device)
        self.seed = torch.zeros(rows, dtype=torch.int64, device=self.device)
        self.last = torch.zeros(rows, dtype=torch.int64, device=self.device)
        self.rules: list[Sampling] = [Sampling()] * rows
        self.biases: list[Bias | None] = [None] * rows
        self.bans: list[Bias | None] = [None] * rows
        self.dry: list[DryPenalty | None] = [None] * rows
        self.counts: Tensor | None = None
        self.seen: Tensor | None = None
        self.draw, self.penalize = Op(sample.KERNELS), Op(penalize.KERNELS)
        self.choices = [op.select(target) for op in (self.draw, self.penalize)]

    def place(self, sequence: Sequence) -> None:
        """Write the rules of a sequence that just got its row."""
        rules, row = sequence.request.sampling, sequence.row
        self.rules[row] = rules
        values = (
            rules.temperature,
            rules.top_p,
            rules.min_p,
            rules.typical_p,
            rules.repetition_penalty,
            rules.presence_penalty,
            rules.frequency_penalty,
        )
        for name, value in zip(FLOATS, values, strict=True):
            self.table[name][row] = value
        self.processors.place(sequence)
        self.top_k[row] = rules.top_k
        self.seed[row] = sequence.seed
        if penalized(rules):
            self.count(sequence)
        ends = rules.stop_ids if rules.ignore_eos else {*rules.stop_ids, *self.eos}
        self.biases[row] = self.bias(rules.logit_bias)
        self.bans[row] = self.bias(dict.fromkeys(ends, BAN)) if rules.min_tokens else None
        dry = rules.dry if rules.dry is not None and rules.dry.multiplier else None
        self.dry[row] = None if dry is None else DryPenalty(dry, sequence.tokens)

    def bias(self, values: Mapping[int, float]) -> Bias | None:
        """Additions by token id, on the device; None where there are none."""
        if not values:
            return None
        return Bias(self.send(list(values)), self.send(list(values.values()), torch.float32))

    def count(self, sequence: Sequence) -> None:
        """Count what a sequence has said so far; tables of [rows, vocab] exist once one asks."""
        if self.counts is None or self.seen is None:
            shape = (len(self.rules), self.vocab)
            self.counts = torch.zeros(shape, dtype=torch.int32, device=self.device)
            self.seen = torch.zeros(shape, dtype=torch.bool, device=self.device)
        row, tokens = sequence.row, self.send(sequence.tokens)
        prompt, said = tokens[: sequence.prompt], tokens[sequence.prompt :]
        self.seen[row] = False
        self.seen[row, prompt] = True
        self.counts[row] = torch.bincount(said, minlength=self.vocab).int()

    def __call__(self, logits: Tensor, sequences: Rows[Sequence]) -> DeviceToHostCopy:
        """logits [W, V], one row per sequence -> the copy that becomes a `SamplerOutput`.

        `last` holds the drawn tokens on the device. Processors come first: log probabilities are
        those of what they let through.
        """
        rules = [self.rules[s.row] for s in sequences]
        rows = self.send([s.row for s in sequences])
        logits = self.processors(logits.float(), sequences, self.last)
        wide = max((r.logprobs for r in rules if r.logprobs is not None), default=None)
        raw = None if wide is None else logits.log_softmax(-1)
        logits = self.bend(logits, sequences, rules, rows)
        tokens = self.draw(logits, self.parameters(sequences, rules, rows))
        self.last[rows] = tokens
        if self.counts is not None:
            mine = self.send([int(penalized(r)) for r in rules], torch.int32)
            self.counts.index_put_((rows, tokens), mine, accumulate=True)
        if raw is None or wide is None:
            return DeviceToHostCopy.send(tokens)
        top = raw.topk(max(wide, 1), -1)
        return DeviceToHostCopy.send(
            tokens, raw.gather(1, tokens[:, None])[:, 0], top.indices, top.values
        )

    def send(self, values: Rows[float], dtype: torch.dtype = torch.int64) -> Tensor:
        return to_device(values, dtype, self.device)

    def parameters(self, sequences: Rows[Sequence], rules: Rows[Sampling], rows: Tensor) -> Draw:
        position = self.send([s.drawn for s in sequences])
        return Draw(
            temperature=self.table["temperature"][rows],
            top_k=self.top_k[rows],
            top_p=self.table["top_p"][rows],
            min_p=self.table["min_p"][rows],
            typical=self.table["typical"][rows],
            seed=self.seed[rows],
            position=position,
            greedy=all(r.temperature == 0 for r in rules),
            plain=not any(truncates(r) for r in rules),
        )

    def bend(
        self, logits: Tensor, sequences: Rows[Sequence], rules: Rows[Sampling], rows: Tensor
    ) -> Tensor:
        """Apply penalties, biases and bans, where a row has any."""
        sparse = [(i, bias) for i, s in enumerate(sequences) for bias in self.additions(s)]
        counted = any(penalized(r) for r in rules)
        if not counted and not sparse:
            return logits
        lengths = [len(bias.ids) for _, bias in sparse]
        where = self.send([i for i, _ in sparse])
        logits = logits.clone()
        bent: Tensor = self.penalize(
            logits,
            Penalties(
                counts=self.counts[rows] if counted and self.counts is not None else None,
                seen=self.seen[rows] if counted and self.seen is not None else None,
                repetition=self.table["repetition"][rows],
                presence=self.table["presence"][rows],
                frequency=self.table["frequency"][rows],
                # Without the size, CUDA would wait for the lengths.
                bias_rows=where.repeat_interleave(self.send(lengths), output_size=sum(lengths)),
                bias_ids=torch.cat([bias.ids for _, bias in sparse] or [where]),
                bias_values=torch.cat([bias.values for _, bias in sparse] or [where.float()]),
            ),
        )
        return bent

    def additions(self, sequence: Sequence) -> Iterator[Bias]:
        """What is added to the logits of one row: logit_bias, DRY, and bans before min_tokens."""
        row = sequence.row
        if (bias := self.biases[row]) is not None:
            yield bias
        if (dry := self.dry[row]) is not None:
            dry.update(sequence.tokens)
            ids, amounts = (torch.from_numpy(array) for array in dry.penalties())
            if len(ids):
                yield Bias(
                    send(ids, torch.int64, self.device), send(-amounts, torch.float32, self.device)
                )
        if (bans := self.bans[row]) is not None and sequence.drawn < self.rules[row].min_tokens:
            yield bans


def penalized(rules: Sampling) -> bool:
    return (
        rules.repetition_penalty != 1 or rules.presence_penalty != 0 or rules.frequency_penalty != 0
    )


def truncates(rules: Sampling) -> bool:
    return rules.temperature > 0 and (
        rules.top_k > 0 or rules.top_p < 1 or rules.min_p > 0 or rules.typical_p < 1
    )
