"""`ostro run` with a model that has no chat template; answers that repeat themselves."""

from __future__ import annotations

import pytest

from ostro.entrypoints.cli.chat.base_model import join_text
from ostro.entrypoints.cli.chat.repetition import LENGTH, PERIOD, RepetitionGuard


def test_messages_become_text() -> None:
    turns = [("user", "Once upon"), ("assistant", " a time"), ("user", "a cat"), ("user", "sat")]
    messages = [{"role": role, "content": text} for role, text in turns]
    assert join_text(messages) == "Once upon a time\na cat\nsat"
    assert join_text([]) == ""


@pytest.mark.parametrize("period", [1, 2, 7, PERIOD])
def test_a_cycle_ends_an_answer(period: int) -> None:
    guard, start = RepetitionGuard(), 100
    for token in range(start):
        assert not guard.add(1000 + token)
    found = [guard.add(i % period) for i in range(2 * LENGTH)]
    assert found.index(True) == LENGTH - 1


@pytest.mark.parametrize("period", [PERIOD + 1, 10**9])
def test_longer_cycles_and_text_do_not(period: int) -> None:
    guard = RepetitionGuard()
    assert not any(guard.add(i % period) for i in range(2000))


def test_an_interrupted_cycle_does_not_end_an_answer() -> None:
    """Rows of a table repeat all tokens but one."""
    guard = RepetitionGuard()
    assert not any(guard.add(5 if i % 20 else i) for i in range(2000))
