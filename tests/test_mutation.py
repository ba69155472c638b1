"""The list of mutants: each one applies to the code as it is, and has tests to run."""

from __future__ import annotations

import ast
import functools
from collections import Counter

import mutation
import pytest
from mutants import MUTANTS, ROOMS, Mutant
from mutation import OTHERS, ROOT

LEAST, LEAST_OF_ROOM = 80, 2


def room_of(file: str) -> str:
    """The room of a file: the deepest folder of `ROOMS`."""
    return max((room for room in ROOMS if file.startswith(f"{room}/")), key=len)


@functools.lru_cache(2)
def syntax_tree(text: str) -> str:
    return ast.dump(ast.parse(text))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_applies_to_the_code(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text("utf-8")
    assert text.count(mutant.old) == 1, f"{mutant.name}: its line in {mutant.file} has changed"
    assert "\n" not in mutant.old + mutant.new
    assert syntax_tree(text.replace(mutant.old, mutant.new)) != syntax_tree(text)


def test_names_of_mutants_are_unique() -> None:
    assert not [name for name, count in Counter(m.name for m in MUTANTS).items() if count > 1]


def test_every_room_has_mutants() -> None:
    counts = Counter(room_of(mutant.file) for mutant in MUTANTS)
    assert len(MUTANTS) >= LEAST
    assert not [room for room in ROOMS if counts[room] < LEAST_OF_ROOM]


def test_every_mutant_has_tests() -> None:
    for file in dict.fromkeys(mutant.file for mutant in MUTANTS):
        tests = mutation.tests_of(file)
        assert tests, file
        assert not [test for test in tests if not (ROOT / test).exists()], file


def test_table_of_tests_has_no_stale_path() -> None:
    assert not [folder for folder in OTHERS if not (ROOT / folder).exists()]
    tests = [test for listed in OTHERS.values() for test in listed]
    assert not [test for test in tests if not (ROOT / test).exists()]


def test_file_that_mirrors_a_source_is_first() -> None:
    found = mutation.tests_of("core/nn/rope.py")
    assert found[:2] == ["tests/core/nn/test_rope.py", "tests/core/nn"]
    assert mutation.tests_of("architectures/bert/model.py")[0] == "tests/architectures/test_bert.py"
