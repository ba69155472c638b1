"""Which cases of kernels are slow: two thirds of those that Triton's interpreter runs."""

from __future__ import annotations

from collections import defaultdict
from zlib import crc32

import pytest

from ostro.plugins.conformance.kernels import DEVICE

SHARE = 3
"""The quick suite runs every test of a Triton kernel with one of so many of its cases."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if DEVICE.type != "cpu":
        return
    cases = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        test, _, case = item.nodeid.partition("[")
        interpreted = "triton" in f"{test.rpartition('::')[2]}[{case}" and "_compile" not in test
        if "/core/ops/" in test and interpreted:
            cases[test].append(item)
    for each in cases.values():
        # By a hash of the name: the quick cases are spread over all parameters.
        each.sort(key=lambda item: crc32(item.nodeid.encode()))
        for item in each[-(-len(each) // SHARE) :]:
            item.add_marker("slow")
