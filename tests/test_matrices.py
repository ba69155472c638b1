"""The cover of a matrix of cases."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, product
from types import SimpleNamespace
from typing import Any

import pytest
from matrices import cover, mark, spread

SIZES = {"dtype": 3, "shape": 4, "mode": 2, "module": 3}
CASES = [
    [(name, str(value)) for name, value in zip(SIZES, values, strict=True)]
    for values in product(*(range(size) for size in SIZES.values()))
]


@pytest.mark.parametrize("strength", [1, 2])
def test_every_combination_occurs(strength: int) -> None:
    chosen = [CASES[index] for index in cover(CASES, strength)]

    def occurring(cases: list[list[tuple[str, str]]]) -> set[frozenset[tuple[str, str]]]:
        return {frozenset(values) for case in cases for values in combinations(case, strength)}

    assert occurring(chosen) == occurring(CASES)
    fewest = (4, 12)[strength - 1]  # the product of the largest sizes
    assert fewest <= len(chosen) <= 1.5 * fewest < len(CASES)


def test_what_never_occurs_is_not_needed() -> None:
    cases = [[("a", "0"), ("b", "0")], [("a", "1"), ("b", "1")], [("a", "1"), ("b", "0")]]
    assert cover(cases, 1) == {0, 1}
    assert cover(cases, 2) == {0, 1, 2}


def test_one_parameter_and_none() -> None:
    assert cover([[("a", "0")], [("a", "1")], [("a", "1")]], 2) == {0, 1}
    assert cover([], 2) == set()


def test_a_sample_has_every_value_about_as_often() -> None:
    chosen = [CASES[index] for index in spread(CASES, 12)]
    occurrences = Counter(value for case in chosen for value in case)
    assert len(chosen) == 12
    for name, size in SIZES.items():
        counts = [occurrences[name, str(value)] for value in range(size)]
        assert max(counts) - min(counts) <= 1, counts


@pytest.mark.parametrize("count", [0, 2, 3])
def test_a_sample_has_no_more_cases_than_there_are(count: int) -> None:
    assert len(spread([[("a", "0")], [("a", "0")]], count)) == min(count, 2)


class Case(SimpleNamespace):
    """A test with parameters."""

    def get_closest_marker(self, name: str) -> Any:
        return self.marks.get(name)

    def add_marker(self, name: str) -> None:
        self.marks[name] = True


def case(test: str, sample: int = 0, **parameters: int) -> Any:
    name = "-".join(map(str, parameters.values()))
    marks = {"sample": SimpleNamespace(args=(sample,))} if sample else {}
    return Case(nodeid=f"{test}[{name}]", callspec=Case(params=parameters), marks=marks)


@pytest.mark.parametrize(
    ("test", "sample", "quick"),
    [
        ("tests/core/ops/test_a.py::test_native", 0, range(9, 14)),
        ("tests/core/ops/test_a.py::test_triton", 0, range(3, 4)),
        ("tests/core/ops/test_a_compile.py::test_b", 0, range(1, 2)),
        ("tests/core/ops/test_a.py::test_it_compiles_in_triton", 0, range(1, 2)),
        ("tests/core/ops/test_a.py::test_without_a_compiler", 0, range(9, 14)),
        ("tests/core/engine/test_a.py::test_b", 0, range(27, 28)),
        ("tests/core/engine/test_a.py::test_b", 5, range(5, 6)),
    ],
)
def test_slow_cases(test: str, sample: int, quick: range) -> None:
    triples = product(range(3), repeat=3)
    cases = [case(test, sample, a=a, b=b, c=c) for a, b, c in triples]
    mark(cases)
    assert sum(not case.marks.get("slow") for case in cases) in quick


def test_a_case_that_is_slow_stays_slow() -> None:
    cases = [case("tests/core/ops/test_a.py::test_b", a=0) for _ in range(2)]
    cases[0].add_marker("slow")
    mark(cases)
    assert [bool(case.marks.get("slow")) for case in cases] == [True, False]
