"""Logits processors that a test can follow: what they were told lies in `LOG`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ostro.core.engine.processors import AddedRequest
from ostro.core.errors import RequestError

LOG: list[tuple[str, int, tuple[int, ...]]] = []
BAN = float("-inf")


class Recorder:
    """Notes who comes and goes; `rows` and `vocab` are the sampler's."""

    def __init__(self, rows: int, vocab: int, device: torch.device) -> None:
        self.rows, self.vocab = rows, vocab

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
    """Notes the rows of each call of `apply`, with the last token of each that has drawn one."""

    def __init__(self, rows: int, vocab: int, device: torch.device) -> None:
        super().__init__(rows, vocab, device)
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
    """Bans each row's last token, as the device drew it; the parameter is banned as the first."""

    def __init__(self, rows: int, vocab: int, device: torch.device) -> None:
        super().__init__(rows, vocab, device)
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
    """The same by what the host knows: the prompt's last token counts too."""

    def apply(self, logits: Tensor, rows: Tensor, last_ids: list[int]) -> Tensor:
        assert isinstance(last_ids, list) and len(last_ids) == len(rows)
        return logits.scatter(1, torch.tensor(last_ids)[:, None], BAN)


class Favour(Recorder):
    """Makes token 5 the best by one."""

    def apply(self, logits: Tensor, rows: Tensor, last_ids: Tensor) -> Tensor:
        logits = logits.clone()
        logits[:, 5] = logits.amax(-1) + 1
        return logits


class Halve(Recorder):
    """Takes half of token 5's lead away, and more: the second best wins if this comes last."""

    def apply(self, logits: Tensor, rows: Tensor, last_ids: Tensor) -> Tensor:
        logits = logits.clone()
        logits[:, 5] -= 2
        return logits
