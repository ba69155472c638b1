"""Logits processors of plugins: their protocols, and their calls in each step.

A processor is created with the first request that names it. It keeps its state of a sequence under
the sequence's sampler row, which does not change while the sequence runs. After a preemption the
sequence is added again, with all tokens that it has generated.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ostro.core.device import send, to_device
from ostro.core.engine.sequence import Failure, Sequence
from ostro.core.errors import PluginError, RequestError, nearest
from ostro.core.failure import is_out_of_memory, ordinary_errors
from ostro.core.messages.requests import Sampling
from ostro.core.ops import Op, Target, mask
from ostro.core.records import LogitsProcessor, resolve
from ostro.core.results import InvalidResult, describe_value
from ostro.core.tokenizer.vocabulary import Vocabulary

log = logging.getLogger(__name__)

FAILURES = 2
"""A processor that raised so many times gets no further requests."""


@dataclass(frozen=True)
class AddedRequest:
    """A sequence that got `row`: its parameter for the processor, its prompt, and its output.

    `prompt` and `output` are token ids. `output` is empty unless the sequence was preempted.
    `prepared` is the result of the processor's `prepare`, None without that method.
    """

    row: int
    parameter: Any
    prompt: Rows[int]
    output: Rows[int]
    prepared: Any = None


@dataclass(frozen=True)
class MaskRequest:
    """A sequence in `row` that needs masks: `tokens` are those drawn since its last masks.

    `drafts` are proposed tokens: a mask is needed before each of them and after the last.
    """

    row: int
    tokens: Rows[int]
    drafts: Rows[int] = ()


class AnyProcessor(Protocol):
    """The methods that all processors have.

    A class may also have `prepare(parameter, vocabulary)`, a static method. It runs in a thread
    while the request waits and other requests go on; it may take long, and may raise RequestError.
    Its result is `AddedRequest.prepared`.
    """

    def __init__(self, rows: int, vocabulary: Vocabulary, device: torch.device) -> None: ...

    @staticmethod
    def check(parameter: Any, vocab: int) -> None:
        """Raise RequestError if a request's parameter for the processor is invalid.

        Called in the engine's loop: it must be fast.
        """

    def update(
        self, added: Rows[AddedRequest], removed: Rows[int], moved: Rows[tuple[int, int]]
    ) -> None:
        """Take note of added and removed rows; `moved` are pairs of rows, from and to."""


class Processor(AnyProcessor, Protocol):
    """The protocol of the class that a record's `processor` names."""

    def apply(self, logits: Tensor, rows: Tensor, last_ids: Any) -> Tensor:
        """Logits [n, V] float32 of the sequences in `rows` [n] int64 -> the logits to draw from.

        last_ids [n] int64: the token that each row drew in its last step; undefined for a row that
        was added since. With `host_ids` in the record, a list of the last tokens.
        """


class MaskProcessor(AnyProcessor, Protocol):
    """The protocol of the class of a record with `mask=True`: it excludes tokens, on the host.

    A class may also have `forced(request)`: the tokens that must come next, several if each of them
    is the only one that its mask would allow, [] if there is a choice, None if the mask would allow
    every token. The engine appends them without drawing, where it knows all tokens between steps.

    It may also have `begin(requests)`: called before the logits of a step are computed, where the
    engine knows all tokens by then. What it begins in threads of its own, `fill` collects. The
    requests of `fill` then have no new tokens.
    """

    def fill(self, requests: Rows[MaskRequest], masks: Tensor) -> Mapping[int, Exception | None]:
        """Clear the bits of the tokens that may not be drawn.

        masks [n, ceil(V / 32)] int32, all bits set: request k owns 1 + len(drafts) of them, in the
        order of `requests`; bit i % 32 of word i // 32 is token i. Returns the errors of single
        requests by their index: these end, the others go on. None instead of an error: the mask
        takes longer than the step should wait. The sequence draws in a later step, for which `fill`
        is called again, without new tokens and without drafts.
        """


class LogitsProcessorClass(Protocol):
    """`LogitsProcessor.processor`: a class of processors, one for each engine."""

    def __call__(
        self, rows: int, vocabulary: Vocabulary, device: torch.device, /
    ) -> Processor | MaskProcessor: ...

    def check(self, value: Any, vocab: int, /) -> None:
        """Raise RequestError if a request may not have this value for the parameter."""


class Processors:
    """The processors of one engine, in the `order` of their records."""

    def __init__(
        self,
        records: Iterable[LogitsProcessor],
        rows: int,
        vocab: int,
        device: torch.device,
        read_vocabulary: Callable[[], Vocabulary] | None = None,
        conflicts: Mapping[str, str] | None = None,
    ) -> None:
        """`read_vocabulary` reads the model's vocabulary, with the first request that needs it.

        Without it, a vocabulary has no tokens but their number. `conflicts` are the messages of
        errors for the names that several plugins have.
        """
        self.records = {record.name: record for record in sorted(records, key=lambda r: r.order)}
        self.rows, self.vocab, self.device = rows, vocab, device
        self.conflicts = conflicts or {}
        self.created: dict[str, Processor | MaskProcessor] = {}
        self.users: dict[str, dict[int, Sequence]] = {name: {} for name in self.records}
        self.seen: dict[str, dict[int, int]] = {name: {} for name in self.records}
        self.masks: dict[str, tuple[list[Sequence], Tensor]] = {}
        """The masks [n, ceil(V / 32)] of the step, by processor, and the sequence of each."""
        self.failed: list[Failure] = []
        self.failures = Counter[str]()
        self._read_vocabulary = read_vocabulary or (lambda: Vocabulary(vocab))
        self._vocabulary: Vocabulary | None = None
        self._lock = threading.Lock()
        self._mask: Op | None = None

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens of the model, read once; that may take half a second. Thread-safe."""
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = self._read_vocabulary()
            return self._vocabulary

    @ordinary_errors()
    def check(self, rules: Sampling) -> None:
        """Raise RequestError for an unknown processor or an invalid parameter, PluginError for a
        processor that has failed before, or that several plugins have.

        Any other error of a processor is raised with a note that names it.
        """
        for name, parameter in rules.processors.items():
            if name in self.conflicts:
                raise PluginError(self.conflicts[name], param=name[:40])
            if name not in self.records:
                near = nearest(name, self.records)
                raise RequestError(f"no logits processor {name!r:.40}{near}", param=name[:40])
            if self.failures[name] >= FAILURES:
                raise PluginError(
                    f"the logits processor {name!r} raised errors and is turned off until the "
                    "server restarts; its plugin is in the log"
                )
            try:
                resolve(self.records[name].processor).check(parameter, self.vocab)
            except RequestError:
                raise
            except Exception as error:
                error.add_note(f"check of the logits processor {name!r}")
                raise

    @ordinary_errors()
    def prepare(self, rules: Sampling) -> dict[str, Any]:
        """The results of `prepare` of the processors of a request, by name. Thread-safe.

        Also reads the vocabulary, so that no processor waits for it. Raises RequestError if a
        parameter is invalid; any other error of a processor has a note that names it.
        """
        prepared = dict[str, Any]()
        vocabulary = self.vocabulary
        for name, parameter in rules.processors.items():
            work = getattr(resolve(self.records[name].processor), "prepare", None)
            if work is None:
                continue
            try:
                prepared[name] = work(parameter, vocabulary)
            except RequestError:
                raise
            except Exception as error:
                error.add_note(f"prepare of the logits processor {name!r}")
                raise
        return prepared

    def need_host_tokens(self, rules: Sampling) -> bool:
        """Whether a processor of these rules reads tokens on the host."""
        records = [self.records[name] for name in rules.processors]
        return any(record.host_ids or record.mask for record in records)

    def are_masks(self, rules: Sampling) -> bool:
        """Whether all processors of these rules only exclude tokens."""
        return all(self.records[name].mask for name in rules.processors)

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
                self.note(name, error, "update")
                if name in parameters:
                    self.failed.append(([sequence], error))
                else:
                    log.warning("a logits processor raised", exc_info=error)

    @ordinary_errors()
    def update(self, name: str, sequence: Sequence, removed: Rows[int]) -> None:
        """Remove rows from a processor, and add a sequence if it uses the processor."""
        parameters, row = sequence.request.sampling.processors, sequence.row
        tokens, prompt, added = sequence.tokens, sequence.prompt, list[AddedRequest]()
        if name not in self.created:
            kind = resolve(self.records[name].processor)
            self.created[name] = kind(self.rows, self.vocabulary, self.device)
        if name in parameters:
            prepared = sequence.prepared.get(name)
            added.append(
                AddedRequest(row, parameters[name], tokens[:prompt], tokens[prompt:], prepared)
            )
        self.created[name].update(added, removed, ())
        # Only after the processor accepted it: `apply` runs for users alone.
        if added:
            self.users[name][row] = sequence
            self.seen[name][row] = len(tokens)

    def begin(self, sequences: Rows[Sequence]) -> None:
        """Begin the masks that `fill` will get, of the sequences whose tokens are all known.

        If a processor raises, the sequences that use it are added to `failed`.
        """
        known = [sequence for sequence in sequences if not sequence.pending]
        for name, users in self.mask_users(known):
            method = getattr(self.created[name], "begin", None)
            if method is None:
                continue
            try:
                with ordinary_errors():
                    method(self.mask_requests(name, users))
            except Exception as error:
                self.note(name, error, "begin")
                self.discard(name, error)

    def fill(self, sequences: Rows[Sequence]) -> set[Sequence]:
        """Get the masks of a step that draws for these sequences, one row for each of their drafts.

        Returns the sequences whose masks take longer: they draw in a later step. If a processor
        raises, the sequences that use it are added to `failed`.
        """
        late = set[Sequence]()
        self.masks = {}
        for name, users in self.mask_users(sequences):
            try:
                late |= self.fill_masks(name, users)
            except Exception as error:
                self.note(name, error, "fill")
                self.discard(name, error)
        return late

    def mask_users(self, sequences: Rows[Sequence]) -> list[tuple[str, list[Sequence]]]:
        """The mask processors that some of these sequences use, and those sequences."""
        pairs = list[tuple[str, list[Sequence]]]()
        for name, users in self.users.items():
            if users and self.records[name].mask:
                using = [sequence for sequence in sequences if sequence.row in users]
                pairs += [(name, using)] if using else []
        return pairs

    def mask_requests(self, name: str, users: Rows[Sequence]) -> list[MaskRequest]:
        """The requests for the masks of these sequences, with the tokens since their last ones."""
        seen, requests = self.seen[name], list[MaskRequest]()
        for sequence, count in Counter(users).items():  # one more for each draft
            tokens, drafts = sequence.tokens[seen[sequence.row] :], sequence.drafts[: count - 1]
            requests.append(MaskRequest(sequence.row, tokens, drafts))
            seen[sequence.row] = len(sequence.tokens)
        return requests

    @ordinary_errors()
    def fill_masks(self, name: str, users: Rows[Sequence]) -> set[Sequence]:
        """Get the masks of one processor; return the sequences whose masks take longer."""
        bits = torch.full((len(users), -(-self.vocab // 32)), -1, dtype=torch.int32)
        processor, requests = self.created[name], self.mask_requests(name, users)
        unfilled = processor.fill(requests, bits)  # type: ignore[union-attr]
        if not isinstance(unfilled, Mapping):
            raise InvalidResult(type(processor), "fill", unfilled, "errors by index of request")
        rows, late = Counter(users), set[Sequence]()
        by_index = list(rows)
        for index, error in unfilled.items():
            if error is None:
                late.add(by_index[index])
            else:
                self.failed.append(([by_index[index]], error))
        self.masks[name] = list(rows.elements()), bits
        return late

    def __call__(self, logits: Tensor, sequences: Rows[Sequence], last: Tensor) -> Tensor:
        """Apply the processors of these sequences to logits [W, V], masks after `fill`.

        last [rows] is the last token of each sampler row. If a processor raises, it leaves the
        logits unchanged and the sequences that use it are added to `failed`.
        """
        for name, users in self.users.items():
            at = [i for i, sequence in enumerate(sequences) if sequence.row in users]
            if not at:
                continue
            using = [sequences[i] for i in at]
            if self.records[name].mask:
                logits = self.exclude(name, logits, using, at)
                continue
            try:
                logits = self.apply(name, logits, using, at, last)
            except Exception as error:
                self.note(name, error, "apply")
                self.discard(name, error)
        return logits

    @ordinary_errors()
    def apply(
        self, name: str, logits: Tensor, users: Rows[Sequence], at: Rows[int], last: Tensor
    ) -> Tensor:
        """Logits after one processor changed the rows `at`, those of `users`."""
        index = to_device(at, torch.int64, self.device)
        rows = to_device([sequence.row for sequence in users], torch.int64, self.device)
        host = self.records[name].host_ids
        ids = [sequence.tokens[-1] for sequence in users] if host else last[rows]
        processor, chosen = self.created[name], logits[index]
        changed = processor.apply(chosen, rows, ids)  # type: ignore[union-attr]
        if not is_like(changed, chosen):
            raise InvalidResult(type(processor), "apply", changed, describe_value(chosen))
        # Not in place: the logits stay valid if this raises.
        return logits.index_copy(0, index, changed)

    def exclude(self, name: str, logits: Tensor, users: Rows[Sequence], at: Rows[int]) -> Tensor:
        """Logits after one mask processor excluded tokens from the rows `at`, in place."""
        owners, bits = self.masks[name]
        if len(users) < len(owners):  # the masks of some take longer
            drawing = set(users)
            bits = bits[[i for i, owner in enumerate(owners) if owner in drawing]]
        if self._mask is None:
            self._mask = Op(mask.KERNELS)
            self._mask.select(Target(device=self.device, dtype=torch.float32, deterministic=False))
        masked: Tensor = self._mask(
            logits,
            to_device(at, torch.int64, self.device),
            send(bits, torch.int32, self.device),
        )
        return masked

    def forced(self, sequence: Sequence) -> Rows[int]:
        """The tokens that the masks of a sequence force; none if there is a choice."""
        forced: Rows[int] | None = None
        for name in sequence.request.sampling.processors:
            method = getattr(self.created.get(name), "forced", None)
            if method is None or sequence.row not in self.users[name]:
                return ()
            tokens = sequence.tokens[self.seen[name][sequence.row] :]
            try:
                with ordinary_errors():
                    found = method(MaskRequest(sequence.row, tokens))
                if not self.are_tokens(found):
                    expected = f"None or a list of token ids within 0..{self.vocab - 1}"
                    raise InvalidResult(type(self.created[name]), "forced", found, expected)
            except Exception as error:
                self.note(name, error, "forced")
                self.discard(name, error)
                return ()
            self.seen[name][sequence.row] = len(sequence.tokens)
            if found is not None and forced is not None:
                return ()  # what both allow is known with their masks only
            forced = found if forced is None else forced
        return forced or ()

    def are_tokens(self, forced: Any) -> bool:
        """Whether a result of `forced` is valid."""
        if forced is None:
            return True
        ids = isinstance(forced, Rows) and all(isinstance(token, int) for token in forced)
        return ids and all(0 <= token < self.vocab for token in forced)

    def describe(self, sequence: Sequence) -> list[str]:
        """The processors of a sequence for messages: the name and the class of each."""
        names = sequence.request.sampling.processors
        return [f"{name!r} ({self.records[name].processor})" for name in names]

    def note(self, name: str, error: Exception, method: str) -> None:
        """Add the method to an error of a processor, and count it unless memory ran out."""
        error.add_note(f"{method} of the logits processor {name!r}")
        if is_out_of_memory(error):
            return
        self.failures[name] += 1
        if self.failures[name] == FAILURES:
            log.error(
                "the logits processor %r (%s) raised %d times and is turned off until the "
                "server restarts",
                name,
                self.records[name].processor,
                FAILURES,
            )

    def discard(self, name: str, error: Exception) -> None:
        """Remove a processor that raised for a whole step, and fail all its sequences.

        Its state of these rows may be half changed. The next request that uses it creates it again.
        """
        del self.created[name]
        # A row stays among the users until it is added again, but its sequence may have ended.
        users = [sequence for row, sequence in self.users[name].items() if sequence.row == row]
        self.failed.append((users, error))
        self.users[name] = {}


def is_like(value: object, tensor: Tensor) -> bool:
    """Whether a value is a tensor of the shape, the dtype and the device of another one."""
    if not isinstance(value, Tensor) or value.shape != tensor.shape:
        return False
    return value.dtype == tensor.dtype and value.device == tensor.device
