"""States that do not grow: the cache kind of scans, delta rules and short convolutions."""

from collections.abc import Iterable

from ostro.core.hooks import hookimpl
from ostro.core.records import Cache


@hookimpl
def ostro_caches() -> Iterable[Cache]:
    yield Cache(name="recurrent", kind=f"{__name__}.kind:Recurrent")
