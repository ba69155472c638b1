"""Keys and values in pages: the cache kind of ordinary and of sliding-window attention."""

from collections.abc import Iterable

from ostro.core.hooks import hookimpl
from ostro.core.records import Cache


@hookimpl
def ostro_caches() -> Iterable[Cache]:
    yield Cache(name="paged", kind=f"{__name__}.kind:Paged")
