"""Logits processors that record their calls in `LOG`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from ostro.core.engine.processors import AddedRequest, MaskRequest
from ostro.core.errors import RequestError
from ostro.core.tokenizer.vocabulary import Vocabulary

LOG: list[tuple[str, int, tuple[int, ...]]] = []
BAN = float("-inf")


class Recorder:
    """Records added, removed and moved rows. `rows` and `vocab` are the sampler's."""

    def __init__(self, rows: int, vocabulary: Vocabulary, device: torch.device) -> None:
        self.rows, self.vocab = rows, vocabulary.size

    @staticmethod
    def check(parameter: Any, vocab: int) -> None:
        if not isinstance(parameter, int) or not 0 <= parameter < vocab:
            raise RequestError(f"{parameter!r} is not a token id", param="processors")

    def update(
        self,
        added: Sequence[AddedRequest],
        removed: Sequence[int],
        moved: Sequence[tuple[int, int]],
    ) -> None:
        LOG.extend(("removed", row, ()) for row in removed)
        LOG.extend(("added", each.row, tuple(each.output)) for each in added)


class ApplyRecorder(Recorder):
    """Records the rows of each call of `apply`, with their last sampled tokens."""

    def __init__(self, rows: int, vocabulary: Vocabulary, device: torch.device) -> None:
        super().__init__(rows, vocabulary, device)
        self.fresh = set[int]()

    def update(
        self,
        added: Sequence[AddedRequest],
        removed: Sequence[int],
        moved: Sequence[tuple[int, int]],
    ) -> None:
        super().update(added, removed, moved)
        self.fresh |= {each.row for each in added}

    def apply(self, logits: Tensor, rows: Tensor, last_ids: Any) -> Tensor:
        known = isinstance(last_ids, list)
        for row, token in zip(rows.tolist(), list(last_ids), strict=True):
            LOG.append(("applied", row, () if row in self.fresh and not known else (int(token),)))
        self.fresh -= set(rows.tolist())
        return logits


class NoRepeat(Recorder):
    """Bans the last sampled token of each row, on the device. The parameter is the first ban."""

    def __init__(self, rows: int, vocabulary: Vocabulary, device: torch.device) -> None:
        super().__init__(rows, vocabulary, device)
        self.next = torch.full((rows,), -1, device=device)

    def update(
        self,
        added: Sequence[AddedRequest],
        removed: Sequence[int],
        moved: Sequence[tuple[int, int]],
    ) -> None:
        super().update(added, removed, moved)
        for each in added:
            self.next[each.row] = each.output[-1] if each.output else each.parameter

    def apply(self, logits: Tensor, rows: Tensor, last_ids: Tensor) -> Tensor:
        banned = torch.where(self.next[rows] >= 0, self.next[rows], last_ids)
        self.next[rows] = -1
        return logits.scatter(1, banned[:, None], BAN)


class HostNoRepeat(Recorder):
    """As `NoRepeat`, with ids on the host; the last token of the prompt is banned as well."""

    def apply(self, logits: Tensor, rows: Tensor, last_ids: list[int]) -> Tensor:
        assert isinstance(last_ids, list) and len(last_ids) == len(rows)
        return logits.scatter(1, torch.tensor(last_ids)[:, None], BAN)


class MaskNoRepeat(Recorder):
    """As `NoRepeat`, with masks on the host. It counts all drawn tokens from `fill`.

    A negative parameter bans as its absolute value does, and raises when as many tokens are drawn.
    """

    def __init__(self, rows: int, vocabulary: Vocabulary, device: torch.device) -> None:
        super().__init__(rows, vocabulary, device)
        self.requests = dict[int, AddedRequest]()
        self.drawn = dict[int, list[int]]()

    @staticmethod
    def check(parameter: Any, vocab: int) -> None:
        Recorder.check(abs(parameter), vocab)

    @staticmethod
    def prepare(parameter: int, vocabulary: Vocabulary) -> tuple[int, int]:
        return abs(parameter), vocabulary.size

    def update(
        self,
        added: Sequence[AddedRequest],
        removed: Sequence[int],
        moved: Sequence[tuple[int, int]],
    ) -> None:
        super().update(added, removed, moved)
        for each in added:
            assert each.prepared == (abs(each.parameter), self.vocab)
            self.requests[each.row], self.drawn[each.row] = each, list(each.output)

    def fill(self, requests: Sequence[MaskRequest], masks: Tensor) -> dict[int, Exception]:
        errors, row = dict[int, Exception](), 0
        for i, request in enumerate(requests):
            tokens = self.drawn[request.row]
            tokens += request.tokens
            parameter = self.requests[request.row].parameter
            if parameter < 0 and len(tokens) == -parameter:
                errors[i] = ValueError("no more tokens")
            for banned in (tokens[-1] if tokens else abs(parameter), *request.drafts):
                masks[row, banned // 32] &= ~(1 << banned % 32) if banned % 32 < 31 else 0x7FFFFFFF
                row += 1
        assert row == len(masks)
        return errors


class Favour(Recorder):
    """Raises the logit of token 5 to 1 above the maximum."""

    def apply(self, logits: Tensor, rows: Tensor, last_ids: Tensor) -> Tensor:
        logits = logits.clone()
        logits[:, 5] = logits.amax(-1) + 1
        return logits


class Halve(Recorder):
    """Lowers the logit of token 5, so that the second best token wins if this runs last."""

    def apply(self, logits: Tensor, rows: Tensor, last_ids: Tensor) -> Tensor:
        logits = logits.clone()
        logits[:, 5] -= 2
        return logits


class Forcing:
    """Masks that allow one token at some places of an output, and every token at the others.

    The parameter is the places where one is forced, of each six: [2, 3, 4].
    """

    forces = True

    def __init__(self, rows: int, vocabulary: Any, device: torch.device) -> None:
        self.places: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}

    @staticmethod
    def check(value: Any, vocab: int) -> None:
        pass

    def update(self, added: Any, removed: Any, moved: Any) -> None:
        for request in added:
            self.places[request.row] = request.parameter
            self.lengths[request.row] = len(request.output)

    def at(self, row: int, length: int) -> int | None:
        """The token that is forced behind an output of this length."""
        return 5 + length % 20 if length % 6 in self.places[row] else None

    def fill(self, requests: Any, masks: torch.Tensor) -> dict[int, Exception]:
        row = 0
        for request in requests:
            self.lengths[request.row] += len(request.tokens)
            for i in range(1 + len(request.drafts)):
                if (token := self.at(request.row, self.lengths[request.row] + i)) is not None:
                    masks[row] = 0
                    masks[row, token // 32] = 1 << token % 32
                row += 1
        return {}

    def forced(self, request: Any) -> list[int] | None:
        self.lengths[request.row] += len(request.tokens)
        length, tokens = self.lengths[request.row], list[int]()
        if self.at(request.row, length) is None:
            return None
        while self.forces and (token := self.at(request.row, length)) is not None:
            tokens.append(token)
            length += 1
        return tokens


class Drawn(Forcing):
    """The same masks; nothing is forced without a draw."""

    forces = False


class Late(Drawn):
    """The same masks, each of them only when `fill` is asked for it again, twice in every third
    place of an output. `waited` counts the answers that a mask takes longer.
    """

    waited = 0

    def __init__(self, rows: int, vocabulary: Any, device: torch.device) -> None:
        super().__init__(rows, vocabulary, device)
        self.asked: dict[int, int] = {}

    def update(self, added: Any, removed: Any, moved: Any) -> None:
        super().update(added, removed, moved)
        self.asked |= {request.row: 0 for request in added}

    def fill(self, requests: Any, masks: torch.Tensor) -> dict[int, Any]:
        unfilled: dict[int, Any] = dict(super().fill(requests, masks))
        for index, request in enumerate(requests):
            if request.tokens:
                self.asked[request.row] = 0
            self.asked[request.row] += 1
            if self.asked[request.row] < (3 if self.lengths[request.row] % 3 == 0 else 2):
                assert self.asked[request.row] == 1 or not (request.tokens or request.drafts)
                Late.waited += 1
                unfilled[index] = None
        return unfilled


class Never(Drawn):
    """Masks that are never ready."""

    def fill(self, requests: Any, masks: torch.Tensor) -> dict[int, Any]:
        return dict.fromkeys(range(len(requests)))


class Begun(Drawn):
    """The same masks, begun before the logits of a step. `filled` counts those of `fill`.

    `begun` has the drafts of each row whose masks were begun and not yet asked for, `order` the
    calls of this class in their order.
    """

    filled = 0
    order: ClassVar[list[str]] = []

    def __init__(self, rows: int, vocabulary: Any, device: torch.device) -> None:
        super().__init__(rows, vocabulary, device)
        self.begun: dict[int, list[int]] = {}

    def begin(self, requests: Any) -> None:
        self.order.append("begin")
        for request in requests:
            self.lengths[request.row] += len(request.tokens)
            self.begun[request.row] = list(request.drafts)

    def fill(self, requests: Any, masks: torch.Tensor) -> dict[int, Exception]:
        self.order.append("fill")
        for request in requests:
            if (drafts := self.begun.pop(request.row, None)) is not None:
                Begun.filled += 1
                assert not request.tokens and list(request.drafts) == drafts
        return super().fill(requests, masks)
