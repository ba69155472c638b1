"""The source of Hugging Face hub models, org/name[@revision][:selector]; called last."""

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
    """A hub id with a revision (branch, tag or commit) and a selector (file or format)."""

    id: str
    revision: str | None = None
    selector: str | None = None


@hookimpl(trylast=True)
def ostro_locate(reference: str, kind: str, settings: Settings) -> Path | None:
    """Download the files that are not cached and return their path; None for other references."""
    parsed = parse(reference)
    if parsed is None:
        return None
    from ostro.plugins.sources.hub.download import fetch

    return fetch(parsed, kind, settings)


def parse(text: str) -> Reference | None:
    """Parse a hub reference, or return None for other text."""
    match = _REFERENCE.fullmatch(text)
    return Reference(**match.groupdict()) if match else None
