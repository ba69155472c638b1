"""The models of a server: their settings, names and when they are loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from ostro.core.errors import UsageError
from ostro.core.settings import Settings

Load = Literal["start", "on demand"]
LOADS: tuple[str, ...] = get_args(Load)


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """A model of a server. The first model of a server is its default.

    aliases: further names of the model in requests; "*" stands for every name that is not a name
    of a model or adapter. load: load the weights when the server starts, or on the first request.
    """

    settings: Settings
    aliases: tuple[str, ...] = ()
    load: Load = "start"


def split_name(reference: str) -> tuple[str | None, str]:
    """Return the name and the reference of "NAME=REF". The name of an existing path is None."""
    name, equals, rest = reference.partition("=")
    return (name, rest) if equals and not Path(reference).exists() else (None, reference)


def further_model(first: Settings, reference: str) -> ModelOptions:
    """Return a further model, "NAME=REF" or "REF", with the settings of the first one.

    It has neither the adapters of the first model nor the options that describe its files.
    """
    name, rest = split_name(reference)
    settings = replace(
        first,
        reference=rest,
        name=name,
        arch=None,
        task=None,
        tokenizer=None,
        chat_template=None,
        tool_parser=None,
        reasoning_parser=None,
        revision=None,
        adapters=(),
        adapter_folder=None,
    )
    return ModelOptions(settings=settings)


def check_names(models: Sequence[ModelOptions]) -> None:
    """Raise UsageError for an empty name, and for models that share a name or an alias."""
    from ostro.core.messages.requests import DEFAULT_MODEL
    from ostro.entrypoints.open import name_of

    names = [name for each in models for name in (name_of(each.settings), *each.aliases)]
    if not all(name.strip() for name in names):
        raise UsageError("an alias is empty")
    if any(DEFAULT_MODEL in each.aliases for each in models):
        raise UsageError(f"the alias {DEFAULT_MODEL!r} always names the default model; remove it")
    for name, count in Counter(names).items():
        if count > 1:
            raise UsageError(f"{count} models have the name or alias {name!r:.80}; rename one")
