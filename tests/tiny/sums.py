"""A language model without weights: the next token is a sum over all tokens a row attends to.

`SumModel` stores its terms in the slots of a real cache layout, so its output is correct only if
each row is written to the right slot and attends to the right slots. `next_tokens` computes the
same sums from a plain list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ostro.core.cache import CacheSpec
from ostro.core.engine.blocks import BlockManager, CacheGroup
from ostro.core.engine.engine import Engine
from ostro.core.engine.runner import ModelRunner
from ostro.core.engine.sampler import Sampler
from ostro.core.engine.scheduler import Scheduler
from ostro.core.ops import Target
from ostro.core.ops.attention import AttentionMetadata
from ostro.core.step import Medium, Step
from tiny.loop import BLOCK, CPU, Pages, Room, group

VOCAB = 97
TARGET = Target(device=CPU, dtype=torch.float32)


class SumPages(Pages):
    """Cache pages with one tensor of terms [blocks * block] per layer."""

    def allocate(self, blocks: int) -> None:
        self.terms = [
            torch.zeros(blocks * self.block, dtype=torch.int64) for _ in range(self.layers)
        ]

    def view(self, layer: int, batch: AttentionMetadata) -> tuple[Tensor, AttentionMetadata]:
        return self.terms[layer], batch


def sum_pages(blocks: int, window: int = 0) -> CacheGroup:
    spec = CacheSpec(heads=1, key_dim=1, value_dim=1, window=window)
    made = group(SumPages, spec, blocks)
    made.kind.allocate(blocks)
    return made


class SumModel:
    """A model with two axes of positions. Adapters add 1000 times their mixture row to each term.

    `steps` are the steps of all calls, in order.
    """

    axes = 2

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.encoded: list[int] = []

    def hidden(self, step: Step) -> Tensor:
        """Return sums [T, 1] of the terms that each row attends to."""
        self.steps.append(step)
        assert step.positions.shape == (self.axes, len(step.tokens))
        terms = step.tokens * (step.positions[0] + 1) + 7 * step.positions[1]
        if step.mixture is not None:
            terms = terms + 1000 * step.mixture
        if step.features is not None:
            terms = terms.index_add(0, step.features.rows, step.features.values[:, 0].long())
        cache, batch = step.caches[0]
        kept = batch.slots >= 0
        cache[batch.slots[kept]] = terms[kept]
        sums = list[int]()
        starts, lengths = batch.starts.tolist(), batch.lengths.tolist()
        for table, length, first, end in zip(
            batch.table, lengths, starts[:-1], starts[1:], strict=True
        ):
            slots = (table[:, None].long() * BLOCK + torch.arange(BLOCK)).flatten()[:length]
            for row in range(first, end):
                sums.append(int(cache[slots[: length - (end - row) + 1]].sum()) if length else 0)
        return torch.tensor(sums)[:, None].float()

    def logits(self, hidden: Tensor, step: Step) -> Tensor:
        rows = hidden if step.logits_indices is None else hidden[step.logits_indices]
        return 9.0 * torch.nn.functional.one_hot(rows[:, 0].long() % VOCAB, VOCAB)

    def encode(self, media: Sequence[Medium], step: Step) -> list[tuple[Tensor, ...]]:
        under = 0 if step.mixture is None else 1000 * int(step.mixture[0])
        values = [medium.arrays["values"][:, None] + under for medium in media]
        self.encoded += [int(value[0]) for value in values]
        return [(value,) for value in values]


def next_tokens(
    prompt: Sequence[int], count: int, *, row: int = 0, features: Mapping[int, int] | None = None
) -> list[int]:
    """Return the continuation of a prompt. `features` are added to the terms of its tokens."""
    tokens, added = list(prompt), features or {}
    for _ in range(count):
        terms = [t * (i + 1) + 7 * i + 1000 * row + added.get(i, 0) for i, t in enumerate(tokens)]
        tokens.append(sum(terms) % VOCAB)
    return tokens[len(prompt) :]


def runner_of(
    model: SumModel,
    *groups: CacheGroup,
    seqs: int = 4,
    context: int = 64,
    room: Room | None = None,
    **options: Any,
) -> ModelRunner:
    blocks = BlockManager(groups or (sum_pages(64),), BLOCK)
    sampler = Sampler(seqs, VOCAB, TARGET, frozenset())
    pool: Any = room
    return ModelRunner(
        model,  # type: ignore[arg-type]
        blocks,
        sampler,
        context=context,
        adapter_pool=pool,
        **options,
    )


def engine_of(runner: ModelRunner, *, rows: int = 16, lag: int = 0) -> Engine:
    """Return an engine over a runner with steps of `rows` rows, read `lag` steps late."""
    scheduler = Scheduler(
        runner.blocks,
        runner.features,
        max_rows=rows,
        max_seqs=len(runner.sampler.rules),
        adapter_pool=runner.adapter_pool,
    )
    return Engine(runner, scheduler, vocab=VOCAB, context=runner.context, eos_ids=[], lag=lag)
