"""Threads that parse Python code at the same time."""

from __future__ import annotations

import ast
import gc
import inspect
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ostro.core.collection import collection_off


class Cycle:
    """Garbage for the collector, whose end runs Python code and so may switch threads."""

    def __init__(self) -> None:
        self.cycle = self

    def __del__(self) -> None:
        for _ in range(50):
            pass


@pytest.fixture(autouse=True)
def frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_threads_parse_side_by_side() -> None:
    source = inspect.getsource(ast)

    def parse(_: int) -> ast.Module:
        Cycle()
        return ast.parse(source)

    with collection_off(), ThreadPoolExecutor(4) as threads:
        assert len(list(threads.map(parse, range(40)))) == 40
    assert gc.isenabled()


def test_collection_stays_off() -> None:
    gc.disable()
    try:
        with collection_off():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
