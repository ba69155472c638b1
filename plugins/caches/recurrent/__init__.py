"""The recurrent cache kind: fixed-size states of scans, delta rules and short convolutions."""

from collections.abc import Iterable

from ostro import Cache, hookimpl


@hookimpl
def ostro_caches() -> Iterable[Cache]:
    yield Cache(name="recurrent", kind=f"{__name__}.kind:Recurrent")
