"""Memory of the draft model, or the assistant, of --speculate beside its model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from ostro.core.cache import CacheKind
from ostro.core.engine.proposers.build_speculation import draft_model_settings, no_speculator
from ostro.core.errors import ModelNotFound
from ostro.core.load.describe import ModelOutline, outline
from ostro.core.load.open import find
from ostro.core.load.sizes import Sizes
from ostro.core.nn import AssistantModel
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.entrypoints.fit.room import cache_of
from ostro.entrypoints.fit.weights import STORED, weigh_as


@dataclass(frozen=True)
class Draft:
    """The bytes of the weights, and the cache: none for an assistant, and without --speculate."""

    nbytes: int = 0
    kinds: Sequence[CacheKind] = ()


def draft_of(target: ModelOutline, settings: Settings, plugins: PluginManager) -> Draft:
    """The draft model that --speculate names. Raises UsageError for an unknown name."""
    own = draft_model_settings(settings, plugins)
    if own is None:
        return Draft()
    try:
        path = find(own, plugins)
    except ModelNotFound as error:
        raise no_speculator(own.reference or "", plugins, error) from error
    found = outline(path, own, plugins)
    with closing(found.container):
        if isinstance(found.model, AssistantModel):
            found = replace(found, dtype=target.dtype)
        weights = weigh_as(STORED, found, Sizes(found, own, plugins), found.plan)
        return Draft(weights.nbytes, cache_of(found, path, own, plugins).kinds)
