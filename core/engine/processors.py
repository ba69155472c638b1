"""Logits processors of plugins: their protocol, and their calls in each step.

A processor is created with the first request that names it. It keeps its state of a sequence under
the sequence's sampler row, which does not change while the sequence runs. After a preemption the
sequence is added again, with all tokens that it has generated.
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
    """A sequence that got `row`: its parameter for the processor, its prompt, and its output.

    `prompt` and `output` are token ids. `output` is empty unless the sequence was preempted.
    """

    row: int
    parameter: Any
    prompt: Rows[int]
    output: Rows[int]


class Processor(Protocol):
    """The protocol of the class that a record's `processor` names."""

    def __init__(self, rows: int, vocab: int, device: torch.device) -> None: ...

    @staticmethod
    def check(parameter: Any, vocab: int) -> None:
        """Raise RequestError if a request's parameter for the processor is invalid."""

    def update(
        self, added: Rows[AddedRequest], removed: Rows[int], moved: Rows[tuple[int, int]]
    ) -> None:
        """Take note of added and removed rows; `moved` are pairs of rows, from and to."""

    def apply(self, logits: Tensor, rows: Tensor, last_ids: Any) -> Tensor:
        """Logits [n, V] float32 of the sequences in `rows` [n] int64 -> the logits to draw from.

        last_ids [n] int64: the token that each row drew in its last step; undefined for a row that
        was added since. With `host_ids` in the record, a list of the last tokens.
        """


class Processors:
    """The processors of one engine, in the `order` of their records."""

    def __init__(
        self, records: Iterable[LogitsProcessor], rows: int, vocab: int, device: torch.device
    ) -> None:
        self.records = {record.name: record for record in sorted(records, key=lambda r: r.order)}
        self.sizes, self.vocab, self.device = (rows, vocab, device), vocab, device
        self.created: dict[str, Processor] = {}
        self.users: dict[str, dict[int, Sequence]] = {name: {} for name in self.records}
        self.failed: list[Failure] = []

    def check(self, rules: Sampling) -> None:
        """Raise RequestError for an unknown processor or an invalid parameter.

        Any other error of a processor is raised with a note that names it.
        """
        for name, parameter in rules.processors.items():
            if name not in self.records:
                near = nearest(name, self.records)
                raise RequestError(f"no logits processor {name!r:.40}{near}", param=name[:40])
            try:
                resolve(self.records[name].processor).check(parameter, self.vocab)
            except RequestError:
                raise
            except Exception as error:
                error.add_note(f"check of the logits processor {name!r}")
                raise

    def need_host_tokens(self, rules: Sampling) -> bool:
        """Whether a processor of these rules reads the last token on the host."""
        return any(self.records[name].host_ids for name in rules.processors)

    def add(self, sequence: Sequence) -> None:
        """Add a sequence to its processors, and remove the previous sequence of its row.

        If a processor raises, the sequence is added to `failed` if it uses that processor.
        """
        parameters = sequence.request.sampling.processors if self.records else {}
        for name in self.records:
            # A processor learns of a removal when the row is used again: rows are few, so its
            # memory stays bounded without a call at the end of each sequence.
            removed = self.users[name].pop(sequence.row, None) is not None
            if not removed and name not in parameters:
                continue
            try:
                self.update(name, sequence, [sequence.row] if removed else [])
            except Exception as error:
                # The state of this row alone is in doubt. No sequence uses the row until the next
                # call for it, so the processor's other sequences go on.
                error.add_note(f"update of the logits processor {name!r}")
                if name in parameters:
                    self.failed.append(([sequence], error))
                else:
                    log.warning("a logits processor raised", exc_info=error)

    def update(self, name: str, sequence: Sequence, removed: Rows[int]) -> None:
        """Remove rows from a processor, and add a sequence if it uses the processor."""
        parameters = sequence.request.sampling.processors
        tokens, prompt, added = sequence.tokens, sequence.prompt, list[AddedRequest]()
        if name not in self.created:
            self.created[name] = resolve(self.records[name].processor)(*self.sizes)
        if name in parameters:
            row, parameter = sequence.row, parameters[name]
            added.append(AddedRequest(row, parameter, tokens[:prompt], tokens[prompt:]))
        self.created[name].update(added, removed, ())
        # Only after the processor accepted it: `apply` runs for users alone.
        if added:
            self.users[name][sequence.row] = sequence

    def __call__(self, logits: Tensor, sequences: Rows[Sequence], last: Tensor) -> Tensor:
        """Apply the processors of these sequences to logits [W, V].

        last [rows] is the last token of each sampler row. If a processor raises, it leaves the
        logits unchanged and the sequences that use it are added to `failed`.
        """
        for name, users in self.users.items():
            at = [i for i, sequence in enumerate(sequences) if sequence.row in users]
            if not at:
                continue
            try:
                logits = self.apply(name, logits, [sequences[i] for i in at], at, last)
            except Exception as error:
                error.add_note(f"apply of the logits processor {name!r}")
                self.discard(name, error)
        return logits

    def apply(
        self, name: str, logits: Tensor, users: Rows[Sequence], at: Rows[int], last: Tensor
    ) -> Tensor:
        """Logits after one processor changed the rows `at`, those of `users`."""
        index = to_device(at, torch.int64, self.device)
        rows = to_device([sequence.row for sequence in users], torch.int64, self.device)
        host = self.records[name].host_ids
        ids = [sequence.tokens[-1] for sequence in users] if host else last[rows]
        changed = self.created[name].apply(logits[index], rows, ids)
        # Not in place: the logits may be the output of a graph, and stay valid if this raises.
        return logits.index_copy(0, index, changed)

    def discard(self, name: str, error: Exception) -> None:
        """Remove a processor whose `apply` raised, and fail all its sequences.

        Its state of these rows may be half changed. The next request that uses it creates it again.
        """
        del self.created[name]
        # A row stays among the users until it is added again, but its sequence may have ended.
        users = [sequence for row, sequence in self.users[name].items() if sequence.row == row]
        self.failed.append((users, error))
        self.users[name] = {}
