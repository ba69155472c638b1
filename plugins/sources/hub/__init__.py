"""The source of hub models, org/name[@revision][:selector], and their aliases; called last."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from ostro import Alias, HubReference, Settings, errors, hookimpl

log = logging.getLogger(__name__)


@hookimpl
def ostro_aliases() -> Iterable[Alias]:
    from ostro.plugins.sources.hub.aliases import aliases

    return aliases().values()


@hookimpl(trylast=True)
def ostro_locate(reference: str, kind: str, settings: Settings) -> Path | None:
    """Download the files that are not cached and return their path; None for other references.

    A model may be an alias. Raises ModelNotFound for a word that is similar to an alias.
    """
    if kind == "model" and "/" not in reference:
        return locate_alias(reference, settings)
    parsed = HubReference.parse(reference)
    if parsed is None:
        return None
    from ostro.plugins.sources.hub.download import fetch

    return fetch(parsed, kind, settings)


def locate_alias(name: str, settings: Settings) -> Path | None:
    """The model of an alias; a new download is compared with the hash of the alias.

    Before a download the model and its licence are logged. Raises ModelNotFound for another hash,
    and for a name that is similar to an alias.
    """
    from ostro.plugins.sources.hub.aliases import aliases, verify

    alias = aliases().get(name)
    if alias is None:
        if near := errors.nearest(name, aliases()):
            raise errors.ModelNotFound(
                f"model {name!r} not found{near}; expected a path, ORG/NAME or an alias"
            )
        return None
    parsed = HubReference.parse(alias.reference)
    if parsed is None:
        raise ValueError(f"aliases.json: {name}: {alias.reference!r} is no hub reference")
    from ostro.plugins.sources.hub.download import cached_file, fetch

    before = cached_file(parsed, settings)
    if before is None:
        log.warning("%s is %s, licence %s", name, alias.reference, alias.licence)
    path = fetch(parsed, "model", settings)
    if alias.sha256 and path.resolve() != before:
        verify(path, name, alias)
    return path
