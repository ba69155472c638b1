"""An assistant of a model proposes its most likely tokens from the K/V of the model.

It has no cache and no rows of its own. A proposal reads the hidden states of the row before the
last token, which the step before has computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ostro.core.engine.layout import flat_positions
from ostro.core.engine.location import runs_model
from ostro.core.engine.runner import ModelRunner
from ostro.core.engine.scheduler import Chunk
from ostro.core.engine.speculation import ComputedRows, DraftRequest, Proposer
from ostro.core.failure import ordinary_errors
from ostro.core.nn import AssistantModel
from ostro.core.step import Step


class AssistantProposer(Proposer):
    """The `Proposer` of an assistant."""

    reads_hidden = True

    def __init__(
        self,
        runner: ModelRunner,
        assistant: AssistantModel,
        sources: Sequence[int],
        context: int,
        rows: int,
    ) -> None:
        """runner: that of the target. sources: see `AssistantModel.sources`. context: the positions
        of the assistant. rows: the most running sequences.
        """
        self.runner, self.model, self.device = runner, runner.model, runner.device
        self.assistant, self.sources, self.context = assistant, sources, context
        self.computed: list[ComputedRows | None] = [None] * rows

    def observe(self, computed: Sequence[ComputedRows]) -> None:
        """Keep the hidden states of a launched step."""
        for rows in computed:
            self.computed[rows.sequence.row] = rows

    @ordinary_errors()
    @runs_model
    @torch.inference_mode()
    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        """See `Proposer`. A sequence beyond the assistant's context gets none, nor does one in its
        first step whose prompt another choice of its request has computed.
        """
        drafts: list[list[int]] = [[] for _ in requests]
        asked = list[int]()
        chunks, states = list[Chunk](), list[Tensor]()
        for i, request in enumerate(requests):
            rows, last = self.computed[request.row], len(request.tokens) - 1
            if rows is None or last >= self.context:
                continue
            asked.append(i)
            chunks.append(Chunk(rows.sequence, last - 1, 1, draws=False))
            states.append(rows.hidden[last - 1 - rows.start])
        if not asked:
            return drafts
        # The last token has no K/V yet: what it attends to is what the row before it attends to.
        views = self.runner.cache_views(self.runner.attention_metadata(chunks))
        axes = self.model.axes
        positions = flat_positions([replace(c, start=c.start + 1) for c in chunks], axes)
        step = Step(
            self.runner.int64([requests[i].tokens[-1] for i in asked]),
            self.runner.int64(positions).view(axes, -1),
            caches=[views[layer] for layer in self.sources],
        )
        hidden, proposed = torch.stack(states), list[Tensor]()
        for _ in range(max(requests[i].count for i in asked)):
            tokens, hidden = self.assistant(self.model.embed(step), hidden, step)
            proposed.append(tokens)
            step = replace(step, tokens=tokens)
        for i, tokens in zip(asked, torch.stack(proposed, 1).tolist(), strict=True):
            drafts[i] = tokens[: requests[i].count]
        return drafts

    def release(self, row: int) -> None:
        """Forget the sequence of a row."""
        self.computed[row] = None
