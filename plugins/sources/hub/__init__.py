"""The source of hub models, org/name[@revision][:selector], and their aliases; called last."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path

from ostro import Settings, errors, hookimpl

log = logging.getLogger(__name__)

_REFERENCE = re.compile(
    r"(?P<id>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>[^:@]+))?(:(?P<selector>.+))?", re.ASCII
)


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A hub id with a revision (branch, tag or commit) and a selector (file or format)."""

    id: str
    revision: str | None = None
    selector: str | None = None


@hookimpl(trylast=True)
def ostro_locate(reference: str, kind: str, settings: Settings) -> Path | None:
    """Download the files that are not cached and return their path; None for other references.

    A model may be an alias. Raises ModelNotFound for a word that is similar to an alias.
    """
    if kind == "model" and "/" not in reference:
        return locate_alias(reference, settings)
    parsed = parse(reference)
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
    parsed = parse(alias.reference)
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


def parse(text: str) -> Reference | None:
    """Parse a hub reference, or return None for other text."""
    match = _REFERENCE.fullmatch(text)
    return Reference(**match.groupdict()) if match else None
