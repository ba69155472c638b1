"""Models on the Hugging Face hub: org/name[@revision][:selector]. Asked after everybody else."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ostro import Settings, hookimpl

_REFERENCE = re.compile(
    r"(?P<id>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>[^:@]+))?(:(?P<selector>.+))?", re.ASCII
)


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A hub id, a branch, tag or commit of it, and the file or format wanted."""

    id: str
    revision: str | None = None
    selector: str | None = None


@hookimpl(trylast=True)
def ostro_locate(reference: str, kind: str, settings: Settings) -> Path | None:
    """Where the files are after downloading what is not there yet; None if this is no hub id."""
    parsed = parse(reference)
    if parsed is None:
        return None
    from ostro.plugins.sources.hub.download import fetch

    return fetch(parsed, kind, settings)


def parse(text: str) -> Reference | None:
    """The parts of a hub reference, or None if the text has not that form."""
    match = _REFERENCE.fullmatch(text)
    return Reference(**match.groupdict()) if match else None
