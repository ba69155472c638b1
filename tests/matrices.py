"""Which cases of a parametrized test are quick; the others are marked `slow`.

Of a kernel's cases, a pairwise cover is quick: every two values of different parameters occur
together, if they do in any case. Triton's interpreter is slow: of the cases that it runs, those are
quick in which every value occurs. Compiling takes a second: one case of a test is quick. Of a test
marked `@pytest.mark.sample(N)`, N cases are, which differ in as many parameters as possible.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from itertools import combinations
from zlib import crc32

import pytest

from ostro.plugins.conformance.kernels import DEVICE

KERNELS = (
    "tests/core/ops/",
    "tests/quant/",
    "tests/architectures/test_kernels.py",
    "tests/architectures/flux/test_kernels.py",
)

Value = tuple[str, str]
"""The name of a parameter, and its value as text."""


def cover(cases: Sequence[Collection[Value]], strength: int) -> set[int]:
    """The indices of cases with every combination of `strength` values of different parameters that
    occurs in a case. Takes the case with the most combinations that are missing, then the next.
    """
    missing = [set(combinations(sorted(case), min(strength, len(case)))) for case in cases]
    chosen = set[int]()
    while any(missing):
        best = max(range(len(cases)), key=lambda index: len(missing[index]))
        chosen.add(best)
        missing = [each - missing[best] for each in missing]
    return chosen


def spread(cases: Sequence[Collection[Value]], count: int) -> set[int]:
    """The indices of `count` cases in which every value occurs about as often as the others of its
    parameter. Takes the case whose values have occurred least, then the next.
    """
    occurrences = Counter[Value]()
    left = list(range(len(cases)))
    while left and len(cases) - len(left) < count:
        index = min(left, key=lambda index: sum(occurrences[value] for value in cases[index]))
        occurrences.update(cases[index])
        left.remove(index)
    return {*range(len(cases))} - {*left}


def interpreted(test: str) -> bool:
    """Whether Triton's interpreter runs this test, judged by its name."""
    name = test.rpartition("::")[2]
    return DEVICE.type == "cpu" and "triton" in name and not compiles(test)


def compiles(test: str) -> bool:
    """Whether this test compiles kernels without running them, judged by its name."""
    return re.search(r"_compiles?(_|\.|$)", test) is not None


def mark(items: Sequence[pytest.Item]) -> None:
    """Mark the cases that are not quick."""
    tests = defaultdict[tuple[str, bool], list[pytest.Item]](list)
    for item in items:
        if hasattr(item, "callspec") and item.get_closest_marker("slow") is None:
            tests[item.nodeid.partition("[")[0], interpreted(item.nodeid)].append(item)
    for (test, triton), cases in tests.items():
        # In an order without meaning, so that the quick cases are spread over all values.
        cases.sort(key=lambda item: crc32(item.nodeid.encode()))
        marker = cases[0].get_closest_marker("sample")
        if marker is not None:
            quick = spread([values(item) for item in cases], *marker.args)
        elif test.startswith(KERNELS) and compiles(test):
            quick = {0}
        elif test.startswith(KERNELS):
            quick = cover([values(item) for item in cases], 1 if triton else 2)
        else:
            continue
        for index, item in enumerate(cases):
            if index not in quick:
                item.add_marker("slow")


def values(item: pytest.Item) -> list[Value]:
    parameters = item.callspec.params  # type: ignore[attr-defined]
    return [(name, repr(value)) for name, value in parameters.items()]
