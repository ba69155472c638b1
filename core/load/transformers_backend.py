"""Bodies: models that are a class of transformers, which the plugin of that name serves.

A record asks for one by its `model`, "transformers:Name" or "transformers:package.module:Name". A
checkpoint that no plugin claims gets one where the installed transformers has its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ostro.core.errors import UnsupportedArchitecture
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Architecture, Files, Settings

BODY = "transformers"
"""How a record's `model` begins that is a body, and the name of the plugin that serves it."""


def is_body(architecture: Architecture) -> bool:
    return architecture.model.startswith(f"{BODY}:")


def find(files: Files, raw: Mapping[str, Any], plugins: PluginManager) -> Architecture | None:
    """The record of the class that a config names, or None where transformers has no such."""
    record = plugins.claimant(
        "architectures",
        lambda known: known.name == BODY and known.claims and known.claims(files, raw),
        f"the body {BODY}",
    )
    if record is None:
        return None
    name = raw["architectures"][0]
    config, model = f"{BODY}:{name}.config_class", f"{BODY}:{name}"
    body: Architecture = replace(record, classes=(name,), config=config, model=model)
    return body


def asked(files: Files, raw: Mapping[str, Any], plugins: PluginManager) -> Architecture:
    """As `find`, where a body and nothing else is asked for. Raises UnsupportedArchitecture."""
    found = find(files, raw, plugins)
    if found is None:
        classes = raw.get("architectures")
        raise UnsupportedArchitecture(
            f"--arch {BODY}: the installed transformers has no class {classes!r:.80}; leave it out"
        )
    return found


def explain(architecture: Architecture, settings: Settings) -> list[str]:
    """Say that a body is run, and why; nothing of other models."""
    if not is_body(architecture):
        return []
    why = "no plugin claims it" if settings.arch is None else f"--arch {settings.arch}"
    if architecture.name != BODY:
        why = f"the plugin of {architecture.name} names it"
    name = architecture.model.removeprefix(f"{BODY}:")
    return [f"body: {BODY} {name} ({why}; slower than a plugin)"]
