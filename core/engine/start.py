"""Starts an engine from settings, in the process that owns the device."""

from __future__ import annotations

from collections.abc import Iterable

from ostro.core.engine.build import build_engine, make_ready, set_threads, warm_up
from ostro.core.engine.engine import Engine
from ostro.core.engine.loop import Report
from ostro.core.load.model import load_model
from ostro.core.load.open import find
from ostro.core.plugins import PluginManager
from ostro.core.records import Settings


def open_engine(
    settings: Settings, plugins: PluginManager, eos_ids: Iterable[int], report: Report
) -> tuple[Engine, list[str]]:
    """Load the model the settings refer to; give its engine, warmed up, and what was chosen.

    Raises an OstroError that says what is wrong with the settings or the model.
    """
    set_threads(settings.threads)
    path = find(settings, plugins)
    loaded = load_model(
        path, settings, plugins, lambda done, total: report("reading weights", done, total)
    )
    engine = build_engine(loaded, settings, plugins, eos_ids)
    plugins.hook.ostro_model_loaded(model=loaded)
    report("warming up", 0, 0)
    make_ready(engine, loaded)
    warm_up(engine)
    return engine, loaded.explain
