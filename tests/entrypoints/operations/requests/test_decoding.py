"""Work on large JSON: in a thread, without garbage collection."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from ostro.entrypoints.operations.requests.decoding import SMALL, json_aside


def state() -> tuple[bool, bool]:
    """Return whether this is the main thread, and whether garbage is collected."""
    return threading.current_thread() is threading.main_thread(), gc.isenabled()


def test_large_json_is_decoded_in_a_thread_without_garbage_collection() -> None:
    """A collection within a decoder looks at all objects of the server, and holds the GIL."""

    def fail() -> None:
        assert state() == (False, False)
        raise ValueError("not JSON")

    async def main() -> None:
        assert await json_aside(SMALL, state) == (True, True)
        assert await json_aside(SMALL + 1, state) == (False, False)
        assert gc.isenabled()
        with pytest.raises(ValueError, match="not JSON"):
            await json_aside(SMALL + 1, fail)
        assert gc.isenabled()
        gc.disable()  # as an application may choose
        try:
            await json_aside(SMALL + 1, state)
            assert not gc.isenabled()
        finally:
            gc.enable()

    asyncio.run(main())
