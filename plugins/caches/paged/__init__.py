"""The paged cache kinds: keys and values of tokens, and of encoder states."""

from collections.abc import Iterable

from ostro import Cache, hookimpl


@hookimpl
def ostro_caches() -> Iterable[Cache]:
    yield Cache(name="paged", kind=f"{__name__}.kind:Paged")
    yield Cache(name="cross", kind=f"{__name__}.kind:Cross")
