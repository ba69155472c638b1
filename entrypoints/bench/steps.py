"""Single steps of a model for measurements: without the scheduler, buckets and the sampler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch.nn import Module

from ostro.core.engine.engine import Engine
from ostro.core.engine.runner import ModelRunner
from ostro.core.engine.scheduler import Chunk
from ostro.core.engine.standalone import standalone_sequence
from ostro.core.engine.startup.warm_up import probe_token
from ostro.core.ops import Op


@contextmanager
def prepared_step(engine: Engine, streams: int, depth: int, rows: int) -> Iterator[list[Chunk]]:
    """The chunks of a step of `streams` sequences of `rows` rows, after `depth` tokens of each.

    These tokens are in the cache. There are no chunks if it has no room for all sequences.
    """
    runner, most = engine.runner, engine.scheduler.max_rows
    tokens = [probe_token(engine)] * (depth + rows)
    sequences = [standalone_sequence(tokens) for _ in range(streams)]
    try:
        for sequence in sequences:
            sequence.tables = runner.blocks.new_tables()
            if not runner.blocks.grow(sequence.tables, len(tokens)):
                yield []
                return
        for sequence in sequences:
            for start in range(0, depth, most):
                count = min(most, depth - start)
                run_step(runner, [Chunk(sequence, start, count, draws=False)])
        yield [Chunk(sequence, depth, rows, draws=True) for sequence in sequences]
    finally:
        for sequence in sequences:
            runner.blocks.release(sequence.tables)


def run_step(runner: ModelRunner, chunks: Sequence[Chunk]) -> None:
    """Launch a step up to its logits."""
    step, batches = runner.inputs(chunks), runner.attention_metadata(chunks)
    if runner.device.type == "cuda" and all(chunk.count == 1 for chunk in chunks):
        for batch in batches:
            batch.max_length = runner.context  # the bound of a captured step
    runner.complete(step, chunks, batches)
    runner.model.logits(runner.model.hidden(step), step)


def storages(model: Module) -> list[Any]:
    """The storages of a model's weights; that of an embedding which is also the head once."""
    found = [each for module in model.modules() for each in getattr(module, "active_storages", ())]
    return list({id(storage): storage for storage in found}.values())


def operations(model: Module) -> list[Op]:
    """The operations of a model's modules and of the storages of their weights."""
    owners = (*model.modules(), *storages(model))
    return [value for owner in owners for value in vars(owner).values() if isinstance(value, Op)]


@contextmanager
def wrapped_methods(
    targets: Iterable[tuple[Any, str]], wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Within the context, these methods, given by object and name, are those of `wrap`."""
    with ExitStack() as undone:
        for owner, name in targets:
            if name in vars(owner):
                undone.callback(setattr, owner, name, vars(owner)[name])
            else:
                undone.callback(delattr, owner, name)
            setattr(owner, name, wrap(getattr(owner, name)))
        yield
