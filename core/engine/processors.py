"""Logits processors of plugins: who is asked, for which rows, and what each is told.

A processor is made when the first request asks for it. It holds what it knows of a sequence under
the sequence's row of the sampler, which stays the same as long as the sequence runs; after a
preemption the sequence is added anew, with all it has said.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ostro.core.device import to_device
from ostro.core.engine.request import Sampling
from ostro.core.engine.sequence import Sequence
from ostro.core.errors import RequestError, nearest
from ostro.core.records import LogitsProcessor, resolve


@dataclass(frozen=True)
class AddedRequest:
    """A sequence that got `row`: what it asks for, its prompt, and what it has said so far."""

    row: int
    asked: Any
    prompt: Rows[int]
    said: Rows[int]


class Processor(Protocol):
    """What a record's `processor` names: a class, called as below."""

    def __init__(self, rows: int, vocab: int, device: torch.device) -> None: ...

    @staticmethod
    def check(asked: Any, vocab: int) -> None:
        """Raise RequestError unless this can be asked for."""

    def update(
        self, added: Rows[AddedRequest], removed: Rows[int], moved: Rows[tuple[int, int]]
    ) -> None:
        """Rows that were taken and given up; `moved` are pairs of rows, from and to."""

    def apply(self, logits: Tensor, rows: Tensor, last_ids: Any) -> Tensor:
        """logits [n, V] float32 of the sequences in `rows` [n] int64 -> the logits to draw from.

        last_ids [n] int64: what each drew in its last step, and anything where it was added since;
        where the record asks for `host_ids`, a list of the last tokens.
        """


class Processors:
    """All processors of one engine, in the order that their records ask for."""

    def __init__(
        self, records: Iterable[LogitsProcessor], rows: int, vocab: int, device: torch.device
    ) -> None:
        self.records = {record.name: record for record in sorted(records, key=lambda r: r.order)}
        self.sizes, self.vocab, self.device = (rows, vocab, device), vocab, device
        self.made: dict[str, Processor] = {}
        self.users: dict[str, set[int]] = {name: set() for name in self.records}

    def check(self, rules: Sampling) -> None:
        """Raise RequestError for a processor that nobody has, or what it cannot do."""
        for name, asked in rules.processors.items():
            if name not in self.records:
                near = nearest(name, self.records)
                raise RequestError(f"no logits processor {name!r:.40}{near}", param=name[:40])
            resolve(self.records[name].processor).check(asked, self.vocab)

    def waits(self, rules: Sampling) -> bool:
        """Whether a sequence's next rows wait until its last token is on the host."""
        return any(self.records[name].host_ids for name in rules.processors)

    def place(self, sequence: Sequence) -> None:
        """A sequence got its row; whoever had it before has given it up."""
        row, asked = sequence.row, sequence.request.sampling.processors if self.records else {}
        for name, record in self.records.items():
            users = self.users[name]
            added, removed = list[AddedRequest](), [row] if row in users else []
            users.discard(row)
            if name in asked:
                users.add(row)
                tokens, prompt = sequence.tokens, sequence.prompt
                added.append(AddedRequest(row, asked[name], tokens[:prompt], tokens[prompt:]))
                if name not in self.made:
                    self.made[name] = resolve(record.processor)(*self.sizes)
            if added or removed:
                self.made[name].update(added, removed, ())

    def __call__(self, logits: Tensor, sequences: Rows[Sequence], last: Tensor) -> Tensor:
        """logits [W, V] of these sequences as their processors leave them.

        last [rows]: the last token of each row of the sampler.
        """
        for name, users in self.users.items():
            mine = [i for i, sequence in enumerate(sequences) if sequence.row in users]
            if not mine:
                continue
            index = to_device(mine, torch.int64, self.device)
            rows = to_device([sequences[i].row for i in mine], torch.int64, self.device)
            host = self.records[name].host_ids
            ids = [sequences[i].tokens[-1] for i in mine] if host else last[rows]
            changed = self.made[name].apply(logits[index], rows, ids)
            logits = logits.index_copy(0, index, changed)
        return logits
