"""The store in memory: `--store memory`. It holds the newest documents and ends with the server."""

from collections.abc import Iterable

from ostro import Store, hookimpl


def is_memory(location: str) -> bool:
    return location == "memory"


@hookimpl
def ostro_stores() -> Iterable[Store]:
    yield Store(
        name="memory", claims=is_memory, open=f"{__name__}.store:open_store", usage="memory"
    )
