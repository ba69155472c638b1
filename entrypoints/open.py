"""Finds a model: its files, architecture, tokenizer, chat template and sampling defaults."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from ostro.core.chat import ChatTemplate, load_template
from ostro.core.errors import OstroError, Unsupported
from ostro.core.ipc.client import AsyncEngine
from ostro.core.load.container import Container
from ostro.core.load.open import (
    architecture_of,
    header_config,
    open_container,
)
from ostro.core.load.open import find as find_path
from ostro.core.pipeline import CheckpointSummary, ServedModel
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Parser, Pipeline, resolve
from ostro.core.settings import STARTER, Settings
from ostro.core.tasks import TaskPipeline
from ostro.core.tokenizer import Tokenizer, load_tokenizer
from ostro.entrypoints.sampling_defaults import sampling_defaults

PACKED = frozenset({"U8", "I32", "U32"})
"""Formats of tensors whose elements hold several weights each."""
SIZES: Mapping[str, str] = {
    "hidden_size": "embedding_length",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_hidden_layers": "block_count",
    "num_key_value_heads": "attention.head_count_kv",
    "vocab_size": "vocab_size",
}
"""Fields of a config.json, and the keys of GGUF files behind the name of the architecture."""
WITHOUT_TOKENIZER = frozenset({"draw", "speak"})
"""Tasks whose pipelines load the tokenizers of their components themselves."""


def find_model(settings: Settings, plugins: PluginManager) -> ServedModel:
    """Find the model of the settings, download it if necessary, and read all but its weights.

    Raises an OstroError that says what is missing or malformed.
    """
    path = find_path(settings, plugins)
    dummy = settings.dummy_weights is not None
    with closing(open_container(path, plugins, dummy=dummy)) as container:
        raw = container.config()
        architecture = architecture_of(container, raw, settings, plugins)
        needed = architecture.inputs is not None or "classify" in architecture.tasks
        if raw is None and needed:  # preprocessing and the names of labels read the config
            raw = header_config(container, architecture)  # imports torch
        sampling = sampling_defaults(container, settings.generation_config)
        checkpoint = summary_of(container, raw or {}, settings)
    if not architecture.tasks:
        raise Unsupported(
            f"{path.name}: {architecture.name} cannot be served on its own; load a model that "
            "contains it, or the model of an assistant: -m MODEL --speculate ASSISTANT"
        )
    model = ServedModel(
        settings=settings,
        path=path,
        name=name_of(settings),
        architecture=architecture,
        raw_config=raw or {},
        sampling=sampling,
        checkpoint=checkpoint,
        processors=frozenset(plugins.collect("logits_processors")),
    )
    model = with_tokenizer(model, plugins, container.metadata)
    check_parsers(model, plugins)
    # Only now: the check quarantines a plugin whose `matches` raises.
    return replace(model, parsers=plugins.collect("parsers"))


def summary_of(
    container: Container, raw: Mapping[str, Any], settings: Settings
) -> CheckpointSummary:
    """Return what the headers of a checkpoint state; `raw` is its config.json."""
    path, tensors, sizes = container.path, container.tensors.values(), Counter[str]()
    for tensor in tensors:
        sizes[tensor.format] += tensor.nbytes
    (most, _), *_ = sizes.most_common(1) or [("", 0)]
    config = raw.get("quantization_config")
    method = config.get("quant_method") if isinstance(config, Mapping) else None
    packed = any(tensor.format in PACKED and len(tensor.shape) > 1 for tensor in tensors)
    return CheckpointSummary(
        format=path.suffix.removeprefix(".") if path.is_file() else "safetensors",
        nbytes=sizes.total(),
        quantization=str(settings.quant or method or most),
        parameters=None if packed else sum(prod(tensor.shape) for tensor in tensors),
        digest=digest_of(container, settings),
        sizes=sizes_of(container, raw),
    )


def sizes_of(container: Container, raw: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes that a config or the header of a GGUF file states, by the header's keys."""
    family = container.metadata.get("general.architecture")
    config = {**raw, **(raw.get("text_config") or {})}
    stated = {key: config.get(field) for field, key in SIZES.items()}
    stated |= {key: container.metadata.get(f"{family}.{key}", stated[key]) for key in stated}
    return {key: value for key, value in stated.items() if isinstance(value, int)}


def digest_of(container: Container, settings: Settings) -> str:
    """Return the digest of a checkpoint: see `CheckpointSummary`.

    A model may have hundreds of gigabytes, so their bytes are not read.
    """
    path = container.path
    digest = hashlib.sha256(repr((settings.quant, settings.dummy_weights)).encode())
    files = [path] if path.is_file() else [file for file in path.iterdir() if file.is_file()]
    for file in sorted(files):
        if not file.name.startswith("."):  # not of the model
            status = file.stat()
            digest.update(repr((file.name, status.st_size, status.st_mtime_ns)).encode())
    for name, tensor in sorted(container.tensors.items()):
        digest.update(repr((name, tensor.format, tuple(tensor.shape), tensor.nbytes)).encode())
    return digest.hexdigest()


def with_tokenizer(
    model: ServedModel, plugins: PluginManager, metadata: Mapping[str, Any]
) -> ServedModel:
    """Return the model with its tokenizer and chat template, or those of the settings.

    `metadata` is that of the model's container. A model with dummy weights uses the tokenizer of
    the reference.
    """
    settings = model.settings
    path = Path(settings.tokenizer) if settings.tokenizer else model.path
    if settings.tokenizer is None and settings.dummy_weights is not None:
        path = plugins.locate(settings.reference or STARTER, settings)
    try:
        tokenizer = open_tokenizer(path, plugins, metadata if path == model.path else None)
    except OstroError:
        if set(model.tasks) <= WITHOUT_TOKENIZER:
            return model
        raise
    file = Path(settings.chat_template) if settings.chat_template else None
    template: ChatTemplate | None = None
    if file is not None or tokenizer.chat_templates.get("default"):
        template = load_template(tokenizer, file=file)
    return replace(model, tokenizer=tokenizer, template=template)


def open_tokenizer(
    path: Path, plugins: PluginManager, metadata: Mapping[str, Any] | None = None
) -> Tokenizer:
    """Load the tokenizer of a local path; a GGUF file has it in its header.

    `metadata` is that of the header if it has been read already.
    """
    if path.suffix != ".gguf":
        return load_tokenizer(path, plugins=plugins)
    if metadata is None:
        with closing(open_container(path, plugins)) as container:
            metadata = container.metadata
    return load_tokenizer(path, metadata=metadata, plugins=plugins)


def make_pipelines(
    model: ServedModel, engine: AsyncEngine, plugins: PluginManager
) -> dict[str, TaskPipeline]:
    """Return the pipelines of a model by task. Tasks without a pipeline are left out.

    Raises PluginError if several plugins have a pipeline of a task.
    """
    pipelines = {}
    for task in model.tasks:
        record = plugins.claimant("pipelines", partial(is_of, task), f"the task {task!r}")
        if record is not None:
            pipelines[task] = resolve(record.pipeline)(model, engine)
    return pipelines


def is_of(task: str, record: Pipeline) -> bool:
    """Whether a pipeline is one of a task."""
    return record.task == task


def check_parsers(model: ServedModel, plugins: PluginManager) -> None:
    """Raise PluginError if the parser of a model is one of several plugins.

    Of the parsers that match its chat template, it is the one with the highest precedence.
    """
    chosen = (model.settings.tool_parser, model.settings.reasoning_parser)
    for name in filter(None, chosen):
        plugins.find("parsers", name)
    selects = chosen[0] in (None, "none") and chosen != ("none", "none")
    if selects and (template := model.template) is not None:
        precedences = list[int]()  # of those that match

        def note(record: Parser) -> bool:
            if record.matches(template.source):
                precedences.append(record.precedence)
            return False

        plugins.claimant("parsers", note, "the chat template")
        highest = max(precedences, default=0)
        plugins.claimant(
            "parsers",
            lambda record: record.precedence == highest and record.matches(template.source),
            "the chat template",
        )


def name_of(settings: Settings) -> str:
    """Return the name of a model in requests. It is never a path: that would reveal folders."""
    reference = settings.dummy_weights or settings.reference or STARTER
    if settings.name:
        return settings.name
    path = Path(reference)
    if not path.exists():
        return reference
    return path.stem if path.suffix == ".gguf" else path.resolve().name
