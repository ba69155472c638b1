"""The store in a private folder: documents in an SQLite database, blobs in files beside it."""

from collections.abc import Iterable

from ostro import Store, hookimpl


def is_path(location: str) -> bool:
    """Whether a location is a path: neither a URL nor a word with a meaning of its own."""
    return "://" not in location and location not in ("", "memory", "none")


@hookimpl
def ostro_stores() -> Iterable[Store]:
    yield Store(
        name="sqlite", claims=is_path, open=f"{__name__}.store:open_store", usage="a folder"
    )
