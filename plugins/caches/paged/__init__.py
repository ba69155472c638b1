"""Keys and values in pages: of a sequence's tokens, or of what an encoder made of a medium."""

from collections.abc import Iterable

from ostro import Cache, hookimpl


@hookimpl
def ostro_caches() -> Iterable[Cache]:
    yield Cache(name="paged", kind=f"{__name__}.kind:Paged")
    yield Cache(name="cross", kind=f"{__name__}.kind:Cross")
