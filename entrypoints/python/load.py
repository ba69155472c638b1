"""Functions of `import ostro` that load a model or a tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec

from ostro.core.errors import UsageError
from ostro.core.pipeline import ServedModel
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import STARTER, ProgressCallback, Settings
from ostro.core.tokenizer import Tokenizer
from ostro.entrypoints.open import find_model, open_tokenizer
from ostro.entrypoints.python.model import LocalModel


def load(
    reference: str | Path | None = None,
    *,
    dtype: Any = "auto",
    device: str = "auto",
    quant: str | None = None,
    plugins: Sequence[str | Path] = (),
    **settings: Any,
) -> LocalModel:
    """Load a model: a folder, a .gguf file, "org/name[@revision][:selector]", an alias of the hub
    plugin ("smollm2"), or the starter.

    `settings` are further fields of `Settings` (task, context, max_seqs, memory, kv_dtype,
    offline...). Raises an OstroError if the model cannot be found or loaded.
    """
    parsed = settings_of(
        {
            "reference": STARTER if reference is None else str(reference),
            "dtype": str(dtype).removeprefix("torch."),
            "device": str(device),
            "quant": quant,
            **settings,
        }
    )
    return open_model(parsed, plugins)


def settings_of(values: Mapping[str, Any]) -> Settings:
    """Convert keyword arguments. Raises UsageError for an unknown name or a wrong type."""
    known = [field.name for field in fields(Settings)]
    if unknown := values.keys() - set(known):
        names = ", ".join(sorted(unknown))
        raise UsageError(f"unknown setting {names}; expected {', '.join(known)}")
    plain = {name: str(x) if isinstance(x, Path) else x for name, x in values.items()}
    try:
        return msgspec.convert(plain, Settings)
    except msgspec.ValidationError as error:
        raise UsageError(f"settings: {error}") from None


def load_text(
    settings: Settings,
    plugins: Sequence[str | Path] = (),
    progress: ProgressCallback | None = None,
    check: Callable[[ServedModel], object] = lambda model: None,
) -> LocalModel:
    """Load the text model of the settings. `check` receives it before its weights are read.

    Raises UsageError if it does not generate text.
    """
    manager = PluginManager()
    manager.load(settings, plugins)
    model = find_model(settings, manager)
    if "text" not in model.tasks and settings.task in (None, *model.architecture.tasks):
        tasks = ", ".join(model.tasks)
        raise UsageError(f"{model.name} does not generate text: it supports {tasks}")
    check(model)
    return LocalModel(model, manager, progress)


def open_model(
    settings: Settings, plugins: Sequence[str | Path] = (), progress: ProgressCallback | None = None
) -> LocalModel:
    """Load the model of the settings, for one task if they name it, else for all its tasks.

    Raises UsageError for a task that the starter, the default model, does not support.
    """
    manager = PluginManager()
    manager.load(settings, plugins)
    model = find_model(settings, manager)
    tasks = model.architecture.tasks
    if settings.reference == STARTER and settings.task not in (None, *tasks):
        raise UsageError(
            f"the built-in starter supports {', '.join(tasks)}, not {settings.task}; name a model "
            "that does: its folder, its file or ORG/NAME"
        )
    return LocalModel(model, manager, progress)


def tokenizer(reference: str | Path, **settings: Any) -> Tokenizer:
    """Load a tokenizer without a model: of a hub name, folder, tokenizer.json or .gguf file."""
    manager, parsed = PluginManager(), settings_of({"reference": str(reference), **settings})
    manager.load(parsed)
    path = Path(reference)
    return open_tokenizer(
        path if path.exists() else manager.locate(str(reference), parsed), manager
    )
