"""The transformers backend: models whose forward pass is a class of the transformers library.

A record selects it with `model="transformers:Name"` or "transformers:package.module:Name". A
checkpoint that no plugin claims also uses it if the installed transformers has its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ostro.core.errors import UnsupportedArchitecture
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Architecture, Files
from ostro.core.settings import Settings

BODY = "transformers"
"""The prefix of a record's `model` that selects the backend, and the name of its plugin."""


def is_body(architecture: Architecture) -> bool:
    """Whether an architecture runs on the transformers backend."""
    return architecture.model.startswith(f"{BODY}:")


def find(files: Files, raw: Mapping[str, Any], plugins: PluginManager) -> Architecture | None:
    """The record of the class that a config names, or None if transformers does not have it."""
    record = plugins.claimant(
        "architectures",
        lambda known: known.name == BODY and known.claims and known.claims(files, raw),
        f"the {BODY} backend",
    )
    if record is None:
        return None
    name = raw["architectures"][0]
    config, model = f"{BODY}:{name}.config_class", f"{BODY}:{name}"
    body: Architecture = replace(record, classes=(name,), config=config, model=model)
    return body


def require(files: Files, raw: Mapping[str, Any], plugins: PluginManager) -> Architecture:
    """As `find`; raises UnsupportedArchitecture if transformers does not have the class."""
    found = find(files, raw, plugins)
    if found is None:
        classes = raw.get("architectures")
        raise UnsupportedArchitecture(
            f"--arch {BODY}: the installed transformers has no class {classes!r:.80}; remove --arch"
        )
    return found


def explain(architecture: Architecture, settings: Settings) -> list[str]:
    """The --explain line of a model on the transformers backend; empty for other models."""
    if not is_body(architecture):
        return []
    why = "no plugin claims it" if settings.arch is None else f"--arch {settings.arch}"
    if architecture.name != BODY:
        why = f"the plugin of {architecture.name} names it"
    name = architecture.model.removeprefix(f"{BODY}:")
    return [f"backend: {BODY} {name} ({why}; slower than a plugin)"]
