"""Builds the speculation of an engine with the proposer that `--speculate` names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ostro.core.device import format_bytes
from ostro.core.engine.blocks import BlockManager
from ostro.core.engine.proposers.assistant import AssistantProposer
from ostro.core.engine.proposers.draft_model import (
    DraftModelProposer,
    check_vocabularies,
    draft_settings,
)
from ostro.core.engine.proposers.multi_token import MultiTokenProposer
from ostro.core.engine.runner import ModelRunner
from ostro.core.engine.speculation import Proposer, Speculation
from ostro.core.engine.vocabulary import read_vocabulary
from ostro.core.errors import ConfigError, ModelNotFound, PluginError, UsageError, nearest
from ostro.core.failure import ordinary_errors
from ostro.core.load.model import LoadedModel
from ostro.core.load.multi_token import HEADS
from ostro.core.nn import AssistantModel, MultiTokenHead, TokenModel
from ostro.core.placement.offload import with_storages
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import resolve
from ostro.core.settings import Settings


def draft_model_settings(settings: Settings, plugins: PluginManager) -> Settings | None:
    """The settings of the draft model of --speculate; None if it names a speculator, or nothing.

    Raises PluginError for a speculator that several plugins offer.
    """
    name = settings.speculate
    if name is None or name == HEADS or plugins.find("speculators", name) is not None:
        return None
    return draft_settings(settings, name)


def no_speculator(name: str, plugins: PluginManager, error: ModelNotFound) -> UsageError:
    """The error of a --speculate that names neither a speculator nor a model."""
    speculators = [*plugins.collect("speculators"), HEADS]
    return UsageError(
        f"--speculate {name!r:.60}: no such speculator{nearest(name, speculators)}; "
        f"installed: {', '.join(speculators)}; and no draft model: {error}"
    )


def build_speculation(
    loaded: LoadedModel,
    settings: Settings,
    plugins: PluginManager,
    runner: ModelRunner,
    draft_runner: ModelRunner | None,
    rows: int,
) -> Speculation | None:
    """The speculation of --speculate; None without it.

    runner: that of the model. draft_runner: that of its draft model. rows: the rows of a step.
    Raises UsageError for an assistant that does not fit the model, PluginError for a speculator
    that cannot be created.
    """
    if settings.speculate is None:
        return None
    proposer = build_proposer(loaded, settings, plugins, runner, draft_runner, rows)
    runner.keeps_hidden = proposer.reads_hidden
    return Speculation(proposer, settings.max_seqs, runner.sampler.vocab, plugins.explain)


def build_proposer(
    loaded: LoadedModel,
    settings: Settings,
    plugins: PluginManager,
    runner: ModelRunner,
    draft_runner: ModelRunner | None,
    rows: int,
) -> Proposer:
    """The proposer that --speculate names; the arguments as in `build_speculation`."""
    name, seqs, vocab = settings.speculate or "", settings.max_seqs, runner.sampler.vocab
    if name == HEADS:
        return head_proposer(loaded, runner, seqs)
    if (draft := loaded.draft) is None:
        return new_proposer(name, plugins, seqs, vocab)
    if draft_runner is None:
        return assistant_proposer(loaded, draft, settings, plugins, runner)
    loaded.explain.append(f"draft model {name}: {format_bytes(draft.nbytes)} of weights")
    return DraftModelProposer(draft_runner, seqs, rows, vocab)


def new_proposer(name: str, plugins: PluginManager, seqs: int, vocab: int) -> Proposer:
    """The proposer of a speculator. Raises PluginError, which names its plugin."""
    record = plugins.get("speculators", name)
    try:
        with ordinary_errors():
            return complete(resolve(record.proposer))(seqs, vocab)
    except Exception as error:
        raise PluginError(
            f"--speculate {name}: the speculator of {plugins.origin('speculators', name)} cannot "
            f"be created: {plugins.explain(error)}; correct it, or leave --speculate out"
        ) from error


def complete(kind: type[Any]) -> Callable[[int, int], Proposer]:
    """The class of a speculator, with the methods of `Proposer` that it lacks."""
    if issubclass(kind, Proposer):
        return kind
    # Errors name the class and its plugin.
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind, Proposer), names)


def head_proposer(loaded: LoadedModel, runner: ModelRunner, seqs: int) -> MultiTokenProposer:
    """The proposer of the multi-token head of a model."""
    head = loaded.model.mtp
    assert isinstance(head, MultiTokenHead), "`add_head` adds it"
    size = format_bytes(sum(module.nbytes for module in with_storages(head.modules())))
    loaded.explain.append(f"multi-token head: {size} of weights")
    return MultiTokenProposer(runner, head, seqs)


def assistant_proposer(
    loaded: LoadedModel,
    draft: LoadedModel,
    settings: Settings,
    plugins: PluginManager,
    runner: ModelRunner,
) -> AssistantProposer:
    """The proposer of the assistant `draft`. `runner` is that of its target.

    Raises UsageError if it is an assistant of other models, or on another device than the K/V.
    """
    name, assistant = settings.speculate or "", draft.model
    assert isinstance(assistant, AssistantModel), "other draft models have a runner"
    try:
        sources = assistant.sources(loaded.config)
    except ConfigError as error:
        raise UsageError(f"--speculate {name} is an assistant of other models: {error}") from error
    check_same_vocabulary(loaded, draft, settings, plugins)
    groups = [group for group in runner.blocks.groups if {*sources} & {*group.layers}]
    if any(group.kind.device != draft.device for group in groups):
        raise UsageError(
            f"--speculate {name}: it is on {draft.device}, and the KV cache that it reads is not; "
            "place the whole model there, or use ngram"
        )
    size, read = format_bytes(draft.nbytes), " and ".join(map(str, sorted({*sources})))
    loaded.explain.append(f"assistant {name}: {size} of weights, reads the K/V of layers {read}")
    return AssistantProposer(runner, assistant, sources, draft.context, settings.max_seqs)


def check_draft(
    loaded: LoadedModel,
    draft: LoadedModel,
    settings: Settings,
    plugins: PluginManager,
    blocks: BlockManager,
) -> None:
    """Raise UsageError if a model cannot draft for another one."""
    name = settings.speculate or ""
    if not isinstance(draft.model, TokenModel) or "text" not in draft.architecture.tasks:
        raise UsageError(f"--speculate {name}: it does not generate text; choose a text model")
    if blocks.cross_groups:
        raise UsageError(
            f"--speculate {name}: a draft model must not read media by cross attention; choose "
            "another one"
        )
    check_same_vocabulary(loaded, draft, settings, plugins)


def check_same_vocabulary(
    loaded: LoadedModel, draft: LoadedModel, settings: Settings, plugins: PluginManager
) -> None:
    """Raise UsageError if a model has another vocabulary than the one that drafts for it."""
    name = settings.speculate or ""
    check_vocabularies(
        read_vocabulary(loaded, settings, plugins, ()),
        read_vocabulary(draft, draft_settings(settings, name), plugins, ()),
        name,
    )
