"""Logits processors of plugins: who is asked, for which rows, and what each is told.

A processor is made when the first request asks for it. It holds what it knows of a sequence under
the sequence's row of the sampler, which stays the same as long as the sequence runs; after a
preemption the sequence is added anew, with all it has said.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ostro.core.device import to_device
from ostro.core.engine.request import Sampling
from ostro.core.engine.sequence import Failure, Sequence
from ostro.core.errors import RequestError, nearest
from ostro.core.records import LogitsProcessor, resolve

log = logging.getLogger(__name__)


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
        self.users: dict[str, dict[int, Sequence]] = {name: {} for name in self.records}
        self.failed: list[Failure] = []

    def check(self, rules: Sampling) -> None:
        """Raise RequestError for a processor that no plugin has, or for what it cannot do. Any
        other error of a processor is raised with a note that names it.
        """
        for name, asked in rules.processors.items():
            if name not in self.records:
                near = nearest(name, self.records)
                raise RequestError(f"no logits processor {name!r:.40}{near}", param=name[:40])
            try:
                resolve(self.records[name].processor).check(asked, self.vocab)
            except RequestError:
                raise
            except Exception as error:
                error.add_note(f"check of the logits processor {name!r}")
                raise

    def waits(self, rules: Sampling) -> bool:
        """Whether a sequence's next rows wait until its last token is on the host."""
        return any(self.records[name].host_ids for name in rules.processors)

    def place(self, sequence: Sequence) -> None:
        """Tell processors that a sequence got its row, which the one before it has given up.

        Where a processor raises, the sequence is among `failed` if it asks for that processor.
        """
        asked = sequence.request.sampling.processors if self.records else {}
        for name in self.records:
            gone = self.users[name].pop(sequence.row, None) is not None
            if not gone and name not in asked:
                continue
            try:
                self.update(name, sequence, [sequence.row] if gone else [])
            except Exception as error:
                # Only this row is in doubt. It has no user until a sequence is added to it.
                error.add_note(f"update of the logits processor {name!r}")
                if name in asked:
                    self.failed.append(([sequence], error))
                else:
                    log.warning("a logits processor raised", exc_info=error)

    def update(self, name: str, sequence: Sequence, removed: Rows[int]) -> None:
        """Add a sequence to a processor if it asks for that, and remove rows from it."""
        asked = sequence.request.sampling.processors
        tokens, prompt, added = sequence.tokens, sequence.prompt, list[AddedRequest]()
        if name not in self.made:
            self.made[name] = resolve(self.records[name].processor)(*self.sizes)
        if name in asked:
            added.append(AddedRequest(sequence.row, asked[name], tokens[:prompt], tokens[prompt:]))
        self.made[name].update(added, removed, ())
        if added:
            self.users[name][sequence.row] = sequence

    def __call__(self, logits: Tensor, sequences: Rows[Sequence], last: Tensor) -> Tensor:
        """logits [W, V] of these sequences as their processors leave them.

        last [rows]: the last token of each row of the sampler. Where a processor raises, the logits
        stay as they are and the sequences that use it are among `failed`.
        """
        for name, users in self.users.items():
            mine = [i for i, sequence in enumerate(sequences) if sequence.row in users]
            if not mine:
                continue
            try:
                logits = self.apply(name, logits, [sequences[i] for i in mine], mine, last)
            except Exception as error:
                error.add_note(f"apply of the logits processor {name!r}")
                self.discard(name, error)
        return logits

    def apply(
        self, name: str, logits: Tensor, users: Rows[Sequence], at: Rows[int], last: Tensor
    ) -> Tensor:
        """The logits, those of `users` in the rows `at` as one processor leaves them."""
        index = to_device(at, torch.int64, self.device)
        rows = to_device([sequence.row for sequence in users], torch.int64, self.device)
        host = self.records[name].host_ids
        ids = [sequence.tokens[-1] for sequence in users] if host else last[rows]
        changed = self.made[name].apply(logits[index], rows, ids)
        return logits.index_copy(0, index, changed)

    def discard(self, name: str, error: Exception) -> None:
        """Drop a processor that raised among rows it knew: what it holds of them cannot be trusted.
        All its sequences fail; the next request that asks for it has it made anew.
        """
        del self.made[name]
        # Rows that were given up stay listed until they are placed again.
        users = [sequence for row, sequence in self.users[name].items() if sequence.row == row]
        self.failed.append((users, error))
        self.users[name] = {}
