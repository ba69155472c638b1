"""Builds the speculation of an engine: a speculator of a plugin, or a draft model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from ostro.core.device import format_bytes
from ostro.core.engine.blocks import BlockManager, CacheGroup
from ostro.core.engine.proposers.assistant import AssistantProposer
from ostro.core.engine.proposers.draft_model import DraftModel, check_vocabularies, draft_settings
from ostro.core.engine.proposers.multi_token import MultiTokenProposer
from ostro.core.engine.runner import ModelRunner
from ostro.core.engine.sampler import Sampler
from ostro.core.engine.speculation import Proposer, Speculation
from ostro.core.engine.vocabulary import read_vocabulary
from ostro.core.errors import ConfigError, ModelNotFound, PluginError, UsageError, nearest
from ostro.core.failure import ordinary_errors
from ostro.core.load.model import LoadedModel
from ostro.core.load.multi_token import HEADS
from ostro.core.nn import AssistantModel, MultiTokenHead, TokenModel
from ostro.core.ops import Target
from ostro.core.placement.offload import with_storages
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Settings, resolve


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
    draft_groups: Sequence[CacheGroup],
    *,
    rows: int,
    captured: int,
    captured_prompts: int,
) -> Speculation | None:
    """The speculation of --speculate; None without it.

    runner: that of the model. draft_groups: the cache of its draft model. rows: the rows of a
    step. captured, captured_prompts: those of `ModelRunner`, for its runner. Raises UsageError for
    an unknown name and a draft model of another vocabulary.
    """
    if settings.speculate is None:
        return None
    vocab, seqs = int(loaded.config.vocab_size), settings.max_seqs
    proposer: Proposer
    if settings.speculate == HEADS:
        head = head_of(loaded)
        size = format_bytes(sum(module.nbytes for module in with_storages(head.modules())))
        loaded.explain.append(f"multi-token head: {size} of weights")
        proposer = MultiTokenProposer(runner, head, seqs)
        return Speculation(proposer, seqs, vocab, plugins.explain, proposer.observe)
    draft = loaded.draft
    if draft is not None and isinstance(draft.model, AssistantModel):
        assistant = assistant_proposer(loaded, draft, draft.model, settings, plugins, runner)
        return Speculation(assistant, seqs, vocab, plugins.explain, assistant.observe)
    if draft is None:
        proposer = new_proposer(settings.speculate, plugins, seqs, vocab)
    else:
        draft_blocks = BlockManager(draft_groups, runner.blocks.block)
        check_draft(loaded, draft, settings, plugins, draft_blocks)
        runner = draft_runner(draft, settings, draft_blocks, rows, captured, captured_prompts)
        proposer = DraftModel(runner, seqs, rows, vocab)
        size = format_bytes(draft.nbytes)
        loaded.explain.append(f"draft model {settings.speculate}: {size} of weights")
    return Speculation(proposer, seqs, vocab, plugins.explain)


def new_proposer(name: str, plugins: PluginManager, seqs: int, vocab: int) -> Proposer:
    """The proposer of a speculator. Raises PluginError, which names its plugin."""
    record = plugins.get("speculators", name)
    try:
        with ordinary_errors():
            proposer: Proposer = resolve(record.proposer)(seqs, vocab)
            return proposer
    except Exception as error:
        raise PluginError(
            f"--speculate {name}: the speculator of {plugins.origin('speculators', name)} cannot "
            f"be created: {plugins.explain(error)}; correct it, or leave --speculate out"
        ) from error


def head_of(loaded: LoadedModel) -> MultiTokenHead:
    """The multi-token head of a model."""
    head = loaded.model.mtp
    assert isinstance(head, MultiTokenHead), "`add_head` adds it"
    return head


def assistant_proposer(
    loaded: LoadedModel,
    draft: LoadedModel,
    assistant: AssistantModel,
    settings: Settings,
    plugins: PluginManager,
    runner: ModelRunner,
) -> AssistantProposer:
    """The proposer of `assistant`, the model of `draft`. `runner` is that of its target.

    Raises UsageError if it is an assistant of other models, or on another device than the K/V.
    """
    name = settings.speculate or ""
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


def draft_runner(
    draft: LoadedModel,
    settings: Settings,
    blocks: BlockManager,
    rows: int,
    captured: int,
    captured_prompts: int,
) -> ModelRunner:
    """The runner of a draft model."""
    vocab, device = int(draft.config.vocab_size), draft.device
    target = Target(device=device, dtype=torch.float32, deterministic=settings.deterministic)
    asynchronous = device.type == "cuda" or settings.replay
    return ModelRunner(
        cast(TokenModel, draft.model),
        blocks,
        # Drafts are the most likely tokens: only its device and its row of last tokens are used.
        Sampler(1, vocab, target, frozenset()),
        context=blocks.max_length(draft.context, rows),
        dtype=draft.dtype,
        captured=captured,
        captured_prompts=captured_prompts,
        replay=settings.replay,
        segments=draft.placement.segments(settings.replay) if asynchronous else None,
    )
