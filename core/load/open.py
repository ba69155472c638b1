"""Open a checkpoint and identify its architecture from its headers, without importing torch."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ostro.core.errors import (
    CheckpointError,
    ConfigError,
    Unsupported,
    UnsupportedArchitecture,
    UsageError,
)
from ostro.core.load import bare, transformers_backend
from ostro.core.load.container import CONFIG_BYTES, CheckpointOpener, ConfigReader, Container
from ostro.core.paths import read_regular
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Architecture, Files, resolve
from ostro.core.settings import STARTER, Settings

logger = logging.getLogger(__name__)

PROJECTOR = "projector_type"
"""Suffix of the GGUF metadata key that holds the type of a projector."""


def find(settings: Settings, plugins: PluginManager) -> Path:
    """The local path of the model in the settings: a located model, or a dummy shape.

    Raises UsageError for a revision of local files, and the errors of `PluginManager.locate`.
    """
    if settings.revision and Path(settings.reference or "").exists():
        raise UsageError(
            f"--revision {settings.revision}: local files have no revisions; remove --revision"
        )
    if settings.dummy_weights is not None:
        return Path(settings.dummy_weights)
    reference = settings.reference or STARTER
    if reference in {STARTER, *plugins.collect("aliases")} and Path(reference).exists():
        report_precedence(reference)
    return plugins.locate(reference, settings)


@cache
def report_precedence(name: str) -> None:
    """Log once that a local path takes precedence over the model of the same name."""
    logger.warning(
        "%s is the file or folder ./%s, not the model that ostro knows by this name; rename it or "
        "change the folder to use that model",
        name,
        name,
    )


def title_of(settings: Settings, path: Path) -> str:
    """A model's name for people: that of its file or folder, or the reference if it is not local.

    `path` is where the reference was found, such as a snapshot in a cache.
    """
    reference = settings.reference or STARTER
    if settings.dummy_weights is not None or Path(reference).exists():
        return path.resolve().name
    return reference


def open_container(path: Path, plugins: PluginManager, *, dummy: bool = False) -> Container:
    """Open the checkpoint at a path with the container format that claims it.

    With `dummy`, the path names a shape and the weights are random. Raises CheckpointError if no
    format claims the path.
    """
    if dummy:
        noise: Container = resolve(plugins.get("checkpoints", "dummy").open)(str(path), plugins)
        return noise
    record = plugins.claimant("checkpoints", lambda c: c.claims(path), str(path.name))
    if record is None:
        raise CheckpointError(
            f"{path.name}: no installed checkpoint format reads it; `ostro models` lists them"
        )
    opener: CheckpointOpener = resolve(record.open)
    return opener(path)


def architecture_of(
    container: Container, raw: Mapping[str, Any] | None, settings: Settings, plugins: PluginManager
) -> Architecture:
    """The architecture that claims a checkpoint, by its config.json `raw` or its GGUF header.

    Only records are read: no model class is imported. Raises UnsupportedArchitecture if no plugin
    claims it, ConfigError for an invalid config.
    """
    if raw is not None:
        classes = raw.get("architectures") or []
        if not (isinstance(classes, list) and all(isinstance(c, str) for c in classes)):
            raise ConfigError(f"config.json: architectures={classes!r:.80} is not a list of names")
        files = folder_files(container.path, raw)
        if settings.arch == transformers_backend.BODY:
            return transformers_backend.require(files, raw, plugins)
        try:
            named = [*classes, *bare.full_classes(classes, raw)]
            known = plugins.architecture_for(named, files=files, config=raw, name=settings.arch)
        except UnsupportedArchitecture:
            unclaimed = None if settings.arch else transformers_backend.find(files, raw, plugins)
            if unclaimed is None:
                raise
            return unclaimed
        return bare.without_text(known, container, raw, settings)
    gguf = gguf_name(container)
    if gguf is None:
        raise ConfigError(f"{container.path.name}: found neither config.json nor a GGUF header")
    try:
        return plugins.architecture_for(gguf=gguf, name=settings.arch)
    except UnsupportedArchitecture:
        text, pair, _ = gguf.partition("+")
        if not pair or settings.arch is not None:
            raise
        alone = plugins.architecture_for(gguf=text)
        logger.warning(
            "%s: no installed architecture supports it with its projector (%s); loading the text "
            "model only",
            container.path.name,
            gguf,
        )
        return alone


def gguf_name(container: Container) -> str | None:
    """The GGUF name of a model: its `general.architecture`; with a projector, "text+projector"."""
    metadata = container.metadata
    text = metadata.get("general.architecture")
    types = [value for key, value in metadata.items() if key.endswith(f".{PROJECTOR}")]
    if not isinstance(text, str):
        return None
    return "+".join([text, *(kind for kind in types if isinstance(kind, str))][:2])


def identify(
    container: Container, settings: Settings, plugins: PluginManager
) -> tuple[dict[str, Any], Architecture, str]:
    """The config, the architecture that claims it, and the name space of the tensors."""
    raw = container.config()
    architecture = architecture_of(container, raw, settings, plugins)
    if raw is not None:
        return raw, architecture, "hub"
    return header_config(container, architecture), architecture, "gguf"


def header_config(container: Container, architecture: Architecture) -> dict[str, Any]:
    """The config in the header of a GGUF file. Raises Unsupported if the plugin cannot read it."""
    if architecture.gguf_config is None:
        raise Unsupported(f"the plugin of {architecture.name} does not read GGUF files")
    read: ConfigReader = resolve(architecture.gguf_config)
    return dict(read(container))


def folder_files(path: Path, config: Mapping[str, Any]) -> Files:
    """The input of a record's `claims`: the folder's file names and its config."""
    root = path if path.is_dir() else path.parent
    names = tuple(sorted(p.name for p in root.iterdir() if p.is_file()))
    return Files(root=root, names=names, json={"config.json": config})


def generation_defaults(container: Container) -> dict[str, Any]:
    """The content of a model's generation_config.json; empty if it is missing or unreadable."""
    folder = container.path if container.path.is_dir() else container.path.parent
    try:
        found = json.loads(read_regular(folder / "generation_config.json", CONFIG_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def begin_id(container: Container, raw: Mapping[str, Any]) -> int | None:
    """The BOS token id of the config, its text_config or the GGUF header."""
    text = raw.get("text_config")
    for values, key in (
        (raw, "bos_token_id"),
        (text if isinstance(text, Mapping) else {}, "bos_token_id"),
        (container.metadata, "tokenizer.ggml.bos_token_id"),
    ):
        value = values.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def end_ids(container: Container, raw: Mapping[str, Any]) -> frozenset[int]:
    """The end-of-sequence token ids of the config, the generation config or the GGUF header."""
    candidates = [raw.get("eos_token_id"), generation_defaults(container).get("eos_token_id")]
    for key in ("eos_token_id", "eot_token_id", "eom_token_id"):
        candidates.append(container.metadata.get(f"tokenizer.ggml.{key}"))
    ids: set[int] = set()
    for value in candidates:
        values = value if isinstance(value, list) else [value]
        ids |= {int(id) for id in values if isinstance(id, int) and not isinstance(id, bool)}
    return frozenset(ids)
